#include "unary.cuh"

extern "C" __global__ void lstm(elem* __restrict__ gates, const elem* __restrict__ c, elem* __restrict__ c_next,
                                elem* __restrict__ h_next, long long rows, long long hidden) {
  NN_EACH(at, rows * hidden) {
    elem* gate = gates + at / hidden * 4 * hidden + at % hidden;
    real i = sigmoid(gate[0]), f = sigmoid(gate[hidden]), g = tanh(gate[2 * hidden]), o = sigmoid(gate[3 * hidden]);
    gate[0] = i, gate[hidden] = f, gate[2 * hidden] = g, gate[3 * hidden] = o;
    real next = f * c[at] + i * g;
    c_next[at] = next;
    h_next[at] = o * tanh(next);
  }
}
NN_KERNEL(lstm)

extern "C" __global__ void lstm_vjp(const elem* __restrict__ gates, const elem* __restrict__ c,
                                    const elem* __restrict__ c_next, const elem* __restrict__ dh_next,
                                    elem* __restrict__ dc, elem* __restrict__ dgates, long long rows,
                                    long long hidden) {
  const real one = real(1);
  NN_EACH(at, rows * hidden) {
    long long first_gate = at / hidden * 4 * hidden + at % hidden;
    const elem* gate = gates + first_gate;
    elem* dgate = dgates + first_gate;
    real i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
    real t = tanh(c_next[at]), dh = dh_next[at], d = dh * o * (one - t * t) + dc[at];
    dgate[0] = d * g * (i * (one - i));
    dgate[hidden] = d * c[at] * (f * (one - f));
    dgate[2 * hidden] = d * i * (one - g * g);
    dgate[3 * hidden] = dh * t * (o * (one - o));
    dc[at] = d * f;
  }
}
NN_KERNEL(lstm_vjp)

extern "C" __global__ void gru(elem* __restrict__ gates, const elem* __restrict__ recurrent,
                               const elem* __restrict__ h, elem* __restrict__ h_next, long long rows,
                               long long hidden) {
  NN_EACH(at, rows * hidden) {
    long long first_gate = at / hidden * 3 * hidden + at % hidden;
    elem* gate = gates + first_gate;
    const elem* from = recurrent + first_gate;
    real r = sigmoid(gate[0] + from[0]), z = sigmoid(gate[hidden] + from[hidden]);
    real n = tanh(gate[2 * hidden] + r * from[2 * hidden]);
    gate[0] = r, gate[hidden] = z, gate[2 * hidden] = n;
    h_next[at] = (real(1) - z) * n + z * h[at];
  }
}
NN_KERNEL(gru)

extern "C" __global__ void gru_vjp(const elem* __restrict__ gates, const elem* __restrict__ recurrent,
                                   const elem* __restrict__ h, elem* __restrict__ dh, elem* __restrict__ dgates,
                                   elem* __restrict__ drecurrent, long long rows, long long hidden) {
  const real one = real(1);
  NN_EACH(at, rows * hidden) {
    long long first_gate = at / hidden * 3 * hidden + at % hidden;
    const elem* gate = gates + first_gate;
    elem *dgate = dgates + first_gate, *dfrom = drecurrent + first_gate;
    real r = gate[0], z = gate[hidden], n = gate[2 * hidden], g = dh[at];
    real slope = g * (one - z) * (one - n * n);
    dgate[2 * hidden] = slope;
    dfrom[2 * hidden] = slope * r;
    dgate[0] = dfrom[0] = slope * recurrent[first_gate + 2 * hidden] * (r * (one - r));
    dgate[hidden] = dfrom[hidden] = g * (h[at] - n) * (z * (one - z));
    dh[at] = g * z;
  }
}
NN_KERNEL(gru_vjp)
