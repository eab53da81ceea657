use nn::*;

sequential! {
    Net: [28, 28] -> [10] = Conv2D<1, 16, 3, 1, 1>, ReLU, Flatten, Linear<12544, 10>
}

fn main() {}
