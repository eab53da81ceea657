use nn::*;

sequential! {
    Net: [16, 7] -> [16, 7] = SinusoidalPosAdd<16, 7>
}

fn main() {}
