use nn::*;

sequential! {
    Net: [4] -> [8] = fc: Linear<4, 8>, ReLU, fc: Linear<8, 8>
}

fn main() {}
