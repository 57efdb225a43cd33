// Programmatic dependent launch, by PTX alone; sm_90 and later: a kernel overlaps with the one before it in its stream.
// KernelLaunch.dependent of the second kernel's row requests it; in any other launch both calls do nothing.
#pragma once

// Lets blocks of the next kernel start where there is room, once all blocks of this one have called it or ended.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel before has ended; what it wrote is then visible.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
