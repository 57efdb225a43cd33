// Kernels that overlap with the one ahead of them in their stream (programmatic dependent launch), by PTX alone; sm_90 and
// later. The row of the second one says so (KernelLaunch.early); in any other launch both calls do nothing.
#pragma once

// Lets the next kernel's blocks start as soon as there is room for them.
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel ahead has ended; what it wrote is then visible.
__device__ __forceinline__ void wait_for_kernel_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
