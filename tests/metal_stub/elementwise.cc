// Element by element, with NumPy's broadcasting where there are two inputs.
#include <algorithm>
#include <cmath>

#include "stub.h"

namespace stub {
namespace {

struct Strides {
  Dims dims, a, b;
};

// Strides are 0 along broadcast axes.
bool Broadcast(const Dims& a, const Dims& b, Strides* out) {
  size_t rank = std::max(a.size(), b.size());
  out->dims.assign(rank, 1);
  out->a.assign(rank, 0);
  out->b.assign(rank, 0);
  int64_t size_a = 1, size_b = 1;
  for (size_t i = 0; i < rank; ++i) {
    size_t k = rank - 1 - i;
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    out->dims[k] = x == 1 ? y : x;
    out->a[k] = x == 1 ? 0 : size_a;
    out->b[k] = y == 1 ? 0 : size_b;
    size_a *= x;
    size_b *= y;
  }
  return true;
}

template <class T, class R, class F>
Compute Binary(F f, TF_DataType out_type) {
  return [f, out_type](Call& call) {
    Tensor a, b, o;
    if (!call.In(0, &a) || !call.In(1, &b)) return;
    Strides s;
    if (!Broadcast(a.dims(), b.dims(), &s))
      return call.Fail("Incompatible shapes");
    if (!call.Out(0, out_type, s.dims, &o)) return;
    const T *pa = a.data<T>(), *pb = b.data<T>();
    R* po = o.data<R>();
    Dims at(s.dims.size(), 0);
    int64_t ia = 0, ib = 0;
    for (int64_t i = 0, n = o.n(); i < n; ++i) {
      po[i] = f(pa[ia], pb[ib]);
      for (int k = int(at.size()) - 1; k >= 0; --k) {
        ia += s.a[k];
        ib += s.b[k];
        if (++at[k] < s.dims[k]) break;
        ia -= s.a[k] * s.dims[k];
        ib -= s.b[k] * s.dims[k];
        at[k] = 0;
      }
    }
  };
}

template <class T, class R, class F>
Compute Unary(F f, TF_DataType out_type) {
  return [f, out_type](Call& call) {
    Tensor a, o;
    if (!call.In(0, &a) || !call.Out(0, out_type, a.dims(), &o)) return;
    const T* pa = a.data<T>();
    R* po = o.data<R>();
    for (int64_t i = 0, n = a.n(); i < n; ++i) po[i] = f(pa[i]);
  };
}

using Two = float (*)(float, float);
using Test = bool (*)(float, float);
using One = float (*)(float);

void Select(Call& call) {  // equal shapes, or a scalar, or broadcasting rows
  Tensor c, a, b, o;
  if (!call.In(0, &c) || !call.In(1, &a) || !call.In(2, &b)) return;
  Strides ab, co;
  if (!Broadcast(a.dims(), b.dims(), &ab) ||
      !Broadcast(c.dims(), ab.dims, &co))
    return call.Fail("Incompatible shapes");
  if (!call.Out(0, TF_FLOAT, co.dims, &o)) return;
  Strides ca, cb;
  Broadcast(co.dims, a.dims(), &ca);
  Broadcast(co.dims, b.dims(), &cb);
  Dims at(co.dims.size(), 0);
  for (int64_t i = 0, n = o.n(); i < n; ++i) {
    int64_t ic = 0, ia = 0, ib = 0;
    for (size_t k = 0; k < at.size(); ++k) {
      ic += at[k] * co.a[k];
      ia += at[k] * ca.b[k];
      ib += at[k] * cb.b[k];
    }
    o.f()[i] = c.data<bool>()[ic] ? a.f()[ia] : b.f()[ib];
    for (int k = int(at.size()) - 1; k >= 0; --k) {
      if (++at[k] < co.dims[k]) break;
      at[k] = 0;
    }
  }
}

template <class T, class R>
void CastPair(TF_DataType from, TF_DataType to) {
  Register({"Cast", Unary<T, R>([](T v) { return R(v); }, to),
            {{"SrcT", from}, {"DstT", to}}});
}
template <class T>
void Cast(TF_DataType from) {
  CastPair<T, float>(from, TF_FLOAT);
  CastPair<T, int32_t>(from, TF_INT32);
  CastPair<T, int64_t>(from, TF_INT64);
  CastPair<T, bool>(from, TF_BOOL);
}
void Logical(const char* op, bool (*f)(bool, bool)) {
  Register({op, Binary<bool, bool>(f, TF_BOOL)});
}

}  // namespace

void RegisterElementwise() {
  const TF_DataType F = TF_FLOAT, B = TF_BOOL;
  auto two = [&](const char* op, Two f) {
    Register({op, Binary<float, float>(f, F), {{"T", F}}});
  };
  auto test = [&](const char* op, Test f) {
    Register({op, Binary<float, bool>(f, B), {{"T", F}}});
  };
  auto one = [&](const char* op, One f) {
    Register({op, Unary<float, float>(f, F), {{"T", F}}});
  };
  two("AddV2", [](float a, float b) { return a + b; });
  two("Sub", [](float a, float b) { return a - b; });
  two("Mul", [](float a, float b) { return a * b; });
  two("RealDiv", [](float a, float b) { return a / b; });
  two("DivNoNan", [](float a, float b) { return b == 0 ? 0 : a / b; });
  two("Maximum", [](float a, float b) { return std::max(a, b); });
  two("Minimum", [](float a, float b) { return std::min(a, b); });
  two("SquaredDifference",
      [](float a, float b) { return (a - b) * (a - b); });
  two("Pow", [](float a, float b) { return std::pow(a, b); });
  two("ReluGrad", [](float g, float y) { return y > 0 ? g : 0; });
  two("SigmoidGrad", [](float y, float g) { return g * y * (1 - y); });
  two("TanhGrad", [](float y, float g) { return g * (1 - y * y); });
  two("RsqrtGrad", [](float y, float g) { return g * -.5f * y * y * y; });
  test("Greater", [](float a, float b) { return a > b; });
  test("GreaterEqual", [](float a, float b) { return a >= b; });
  test("Less", [](float a, float b) { return a < b; });
  test("LessEqual", [](float a, float b) { return a <= b; });
  test("Equal", [](float a, float b) { return a == b; });
  one("Relu", [](float a) { return a > 0 ? a : 0; });
  one("Sqrt", [](float a) { return std::sqrt(a); });
  one("Rsqrt", [](float a) { return 1 / std::sqrt(a); });
  one("Reciprocal", [](float a) { return 1 / a; });
  one("Square", [](float a) { return a * a; });
  one("Neg", [](float a) { return -a; });
  one("Exp", [](float a) { return std::exp(a); });
  one("Log", [](float a) { return std::log(a); });
  one("Log1p", [](float a) { return std::log1p(a); });
  one("Erf", [](float a) { return std::erf(a); });
  one("Tanh", [](float a) { return std::tanh(a); });
  one("Sigmoid", [](float a) { return 1 / (1 + std::exp(-a)); });
  one("ZerosLike", [](float) { return 0.f; });
  one("OnesLike", [](float) { return 1.f; });
  Cast<float>(F);
  Cast<int32_t>(TF_INT32);
  Cast<int64_t>(TF_INT64);
  Cast<bool>(B);
  Logical("LogicalAnd", [](bool a, bool b) { return a && b; });
  Logical("LogicalOr", [](bool a, bool b) { return a || b; });
  Register({"LogicalNot", Unary<bool, bool>([](bool a) { return !a; }, B)});
  Register({"Select", Select, {{"T", F}}});
  Register({"SelectV2", Select, {{"T", F}}});
}

}  // namespace stub
