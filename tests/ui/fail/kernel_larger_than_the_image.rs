use nn::*;

sequential! {
    Net: [3, 4, 4] -> [8, 1, 1] = Conv2D<3, 8, 5>
}

fn main() {}
