// The geometry that convolutions and pooling share (NHWC).
#pragma once

#include <algorithm>

#include "stub.h"

namespace stub {

struct Window {
  int64_t n, h, w, c;            // input
  int64_t kh, kw;                // window
  int64_t sh, sw, dh = 1, dw = 1;  // strides, dilations
  int64_t oh, ow, ph = 0, pw = 0;  // output, padding before

  Window(Kernel* k, const Dims& in, int64_t kh_, int64_t kw_)
      : n(in[0]), h(in[1]), w(in[2]), c(in[3]), kh(kh_), kw(kw_) {
    const Dims& s = k->l["strides"];
    sh = s[1];
    sw = s[2];
    if (k->l.count("dilations")) {
      dh = k->l["dilations"][1];
      dw = k->l["dilations"][2];
    }
    Axis(k, h, kh, sh, dh, &oh, &ph);
    Axis(k, w, kw, sw, dw, &ow, &pw);
  }
  static void Axis(Kernel* k, int64_t size, int64_t window, int64_t stride,
                   int64_t dilation, int64_t* out, int64_t* pad) {
    int64_t reach = (window - 1) * dilation + 1;
    if (k->s["padding"] == "SAME") {
      *out = (size + stride - 1) / stride;
      *pad = std::max<int64_t>(0, (*out - 1) * stride + reach - size) / 2;
    } else {
      *out = size < reach ? 0 : (size - reach) / stride + 1;
    }
  }
  // Calls f(input position, kernel row, kernel column, output position) for
  // every pair that meets; positions count pixels, not channels.
  template <class F>
  void Each(F f) const {
    for (int64_t b = 0; b < n; ++b)
      for (int64_t y = 0; y < oh; ++y)
        for (int64_t x = 0; x < ow; ++x)
          for (int64_t i = 0; i < kh; ++i)
            for (int64_t j = 0; j < kw; ++j) {
              int64_t r = y * sh + i * dh - ph, q = x * sw + j * dw - pw;
              if (r < 0 || r >= h || q < 0 || q >= w) continue;
              f((b * h + r) * w + q, i, j, (b * oh + y) * ow + x);
            }
  }
};

inline Dims ListOf(const Tensor& t) {
  Dims d(t.n());
  for (size_t i = 0; i < d.size(); ++i) d[i] = t.index(i);
  return d;
}

}  // namespace stub
