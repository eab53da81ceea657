#include "unary.cuh"

extern "C" __global__ void unary(Function f, const elem* __restrict__ x, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = apply(f, x[i]);
}
NN_KERNEL(unary)

extern "C" __global__ void unary_in_place(Function f, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = apply(f, y[i]);
}
NN_KERNEL(unary_in_place)

// dy and dx may be the same.
extern "C" __global__ void unary_vjp(Function f, const elem* __restrict__ known, const elem* dy, elem* dx,
                                     long long n) {
  NN_EACH(i, n) dx[i] = pull(f, known[i], dy[i]);
}
NN_KERNEL(unary_vjp)

// z = f′(z)·dy.
extern "C" __global__ void pull_in_place(Function f, const elem* __restrict__ dy, elem* __restrict__ z, long long n) {
  NN_EACH(i, n) z[i] = pull(f, z[i], dy[i]);
}
NN_KERNEL(pull_in_place)

extern "C" __global__ void binary(int code, const elem* a, const elem* b, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) {
    real u = a[i], v = b[i];
    y[i] = code == 0 ? u + v : code == 1 ? u - v : code == 2 ? u * v : u / v;
  }
}
NN_KERNEL(binary)

// db = −a·dy / b².
extern "C" __global__ void divisor_vjp(const elem* a, const elem* b, const elem* dy, elem* __restrict__ db,
                                       long long n) {
  NN_EACH(i, n) db[i] = -(dy[i] * (a[i] / b[i])) / b[i];
}
NN_KERNEL(divisor_vjp)

extern "C" __global__ void gated(Function f, const elem* __restrict__ x, elem* __restrict__ y, long long rows,
                                 long long cols, int gate_last) {
  NN_EACH(i, rows * cols) {
    const elem* row = x + i / cols * 2 * cols + i % cols;
    y[i] = apply(f, row[gate_last ? cols : 0]) * row[gate_last ? 0 : cols];
  }
}
NN_KERNEL(gated)

// `known` of the gate's derivative is the gate or, where `from_value`, f of it.
extern "C" __global__ void gated_vjp(Function f, const elem* __restrict__ x, const elem* __restrict__ dy,
                                     elem* __restrict__ dx, long long rows, long long cols, int gate_last,
                                     int from_value) {
  NN_EACH(i, rows * cols) {
    long long at = i / cols * 2 * cols + i % cols;
    long long gate = at + (gate_last ? cols : 0), other = at + (gate_last ? 0 : cols);
    real value = apply(f, x[gate]), g = dy[i];
    dx[gate] = pull(f, from_value ? value : x[gate], g * x[other]);
    dx[other] = value * g;
  }
}
NN_KERNEL(gated_vjp)

extern "C" __global__ void copy_unless(const real* __restrict__ off, const elem* __restrict__ x, elem* __restrict__ y,
                                       long long n) {
  bool zero = off[0] > real(0.5);
  NN_EACH(i, n) y[i] = zero ? real(0) : x[i];
}
NN_KERNEL(copy_unless)

extern "C" __global__ void add_assign(const elem* __restrict__ x, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] += x[i];
}
NN_KERNEL(add_assign)

extern "C" __global__ void fill(double value, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = real(value);
}
NN_KERNEL(fill)

extern "C" __global__ void copy(const elem* __restrict__ x, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = x[i];
}
NN_KERNEL(copy)

extern "C" __global__ void clear(unsigned* flag) {
  if (first() == 0) *flag = 0;
}
NN_KERNEL(clear)

// All that write write the same.
extern "C" __global__ void find_non_finite(const elem* __restrict__ x, long long n, unsigned* flag) {
  NN_EACH(i, n) if (!isfinite(real(x[i]))) *flag = 1;
}
NN_KERNEL(find_non_finite)
