// Sums, means, maxima, softmax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "stub.h"

namespace stub {
namespace {

enum Kind { kSum, kMean, kMax };

// reduction_indices is host memory: it must be registered so.
Compute Reduce(Kind kind) {
  return [kind](Call& call) {
    Tensor a, axes, o;
    if (!call.In(0, &a) || !call.In(1, &axes, /*host=*/true)) return;
    Dims d = a.dims(), out, stride(d.size(), 0);
    std::vector<bool> reduced(d.size(), false);
    for (int64_t i = 0; i < axes.n(); ++i) {
      int64_t axis = axes.index(i);
      reduced[axis < 0 ? axis + d.size() : axis] = true;
    }
    int64_t count = 1, size = 1;
    for (size_t i = 0; i < d.size(); ++i) {
      if (!reduced[i]) out.push_back(d[i]);
      if (reduced[i]) {
        count *= d[i];
        if (call.kernel->b["keep_dims"]) out.push_back(1);
      }
    }
    for (int i = int(d.size()) - 1; i >= 0; --i)
      if (!reduced[i]) {
        stride[i] = size;
        size *= d[i];
      }
    if (!call.Out(0, TF_FLOAT, out, &o)) return;
    double start =
        kind == kMax ? -std::numeric_limits<double>::infinity() : 0.;
    std::vector<double> sums(o.n(), start);
    Dims at(d.size(), 0);
    for (int64_t i = 0, n = a.n(); i < n; ++i) {
      int64_t p = 0;
      for (size_t q = 0; q < d.size(); ++q) p += at[q] * stride[q];
      double x = a.f()[i];
      sums[p] = kind == kMax ? std::max(sums[p], x) : sums[p] + x;
      for (int q = int(d.size()) - 1; q >= 0; --q) {
        if (++at[q] < d[q]) break;
        at[q] = 0;
      }
    }
    for (int64_t i = 0; i < o.n(); ++i)
      o.f()[i] = float(kind == kMean ? sums[i] / count : sums[i]);
  };
}

void SoftmaxRow(const float* x, float* y, int64_t c, bool log) {
  float top = *std::max_element(x, x + c), sum = 0;
  for (int64_t i = 0; i < c; ++i) sum += std::exp(x[i] - top);
  for (int64_t i = 0; i < c; ++i)
    y[i] = log ? x[i] - top - std::log(sum) : std::exp(x[i] - top) / sum;
}
Compute Softmax(bool log) {
  return [log](Call& call) {
    Tensor a, o;
    if (!call.In(0, &a) || !call.Out(0, TF_FLOAT, a.dims(), &o)) return;
    Dims d = a.dims();
    int64_t c = d.empty() ? 1 : d.back();
    for (int64_t i = 0; c && i < a.n() / c; ++i)
      SoftmaxRow(a.f() + i * c, o.f() + i * c, c, log);
  };
}

// Loss and gradient of one row: labels are classes (sparse) or probabilities.
template <class Label>
void SparseCrossEntropy(Call& call) {
  Tensor x, labels, loss, grad;
  if (!call.In(0, &x) || !call.In(1, &labels)) return;
  int64_t rows = x.dims()[0], c = x.dims()[1];
  if (!call.Out(0, TF_FLOAT, {rows}, &loss)) return;
  if (!call.Out(1, TF_FLOAT, {rows, c}, &grad)) return;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t label = labels.data<Label>()[i];
    if (label < 0 || label >= c) return call.Fail("label out of range");
    float* g = grad.f() + i * c;
    SoftmaxRow(x.f() + i * c, g, c, /*log=*/true);
    loss.f()[i] = -g[label];
    for (int64_t k = 0; k < c; ++k) g[k] = std::exp(g[k]) - (k == label);
  }
}

}  // namespace

void RegisterReductions() {
  const TF_DataType F = TF_FLOAT;
  const std::pair<const char*, Kind> kinds[] = {
      {"Sum", kSum}, {"Mean", kMean}, {"Max", kMax}};
  for (auto& kind : kinds)
    for (TF_DataType index : {TF_INT32, TF_INT64}) {
      Definition def{kind.first, Reduce(kind.second),
                     {{"T", F}, {"Tidx", index}}, {"reduction_indices"}};
      def.bools = {"keep_dims"};
      Register(def);
    }
  Register({"Softmax", Softmax(false), {{"T", F}}});
  Register({"LogSoftmax", Softmax(true), {{"T", F}}});
  Register({"SparseSoftmaxCrossEntropyWithLogits",
            SparseCrossEntropy<int32_t>, {{"T", F}, {"Tlabels", TF_INT32}}});
  Register({"SparseSoftmaxCrossEntropyWithLogits",
            SparseCrossEntropy<int64_t>, {{"T", F}, {"Tlabels", TF_INT64}}});
}

}  // namespace stub
