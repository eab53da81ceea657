use nn::*;

sequential! {
    Net: [16] -> [4] = InitWith<Linear<16, 4>, ReLU>
}

fn main() {}
