use nn::*;

sequential! {
    Net: [16] -> [4] = base: StopGradParams<Linear<16, 8>>, ReLU, head: StopGradParams<Linear<4, 4>>
}

fn main() {}
