use nn::*;

sequential! {
    Net: [8] -> [8] = Residual<Linear<8, 4>>
}

fn main() {}
