// Which pixels of a pooling window lie in the image, and how many a mean counts.
//
// A map has H x W pixels and PH x PW windows of WINDOW x WINDOW pixels, STRIDE apart. The first windows begin PADDING
// rows and columns before the image. A mean counts COUNTED rows and columns of padding as pixels: all padding, or 0.
#pragma once
#include "common.cuh"

// Along one axis: how many pixels of window `at` lie in the padding before the image.
__device__ __forceinline__ int pixels_ahead(int at) { return PADDING == 0 ? 0 : max(PADDING - at * STRIDE, 0); }

struct WindowExtent {
    int top, left, bottom, right, count;  // the window's rows from top to bottom and columns from left to right
    __device__ __forceinline__ WindowExtent(int row, int column)
        : top(pixels_ahead(row)), left(pixels_ahead(column)),
          bottom(pixels_inside<WINDOW, STRIDE, PH, H + PADDING>(row)),
          right(pixels_inside<WINDOW, STRIDE, PW, W + PADDING>(column)), count((bottom - top) * (right - left)) {
        if (COUNTED > 0)
            count = pixels_inside<WINDOW, STRIDE, PH, H + COUNTED>(row) * pixels_inside<WINDOW, STRIDE, PW, W + COUNTED>(column);
    }
    __device__ __forceinline__ bool has(int p, int q) const { return p >= top && p < bottom && q >= left && q < right; }
    // Whether a pixel lies in the image and is not the first that does.
    __device__ __forceinline__ bool has_another(int p, int q) const { return has(p, q) && (p > top || q > left); }
};
