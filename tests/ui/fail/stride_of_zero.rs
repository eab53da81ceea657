use nn::*;

sequential! {
    Net: [3, 8, 8] -> [8, 1, 1] = Conv2D<3, 8, 3, 0>
}

fn main() {}
