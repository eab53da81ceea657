use nn::*;

sequential! {
    Net: [6, 8, 8] -> [8, 8, 8] = Conv2D<6, 8, 3, 1, 1, 1, 4>
}

fn main() {}
