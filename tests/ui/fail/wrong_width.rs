use nn::*;

sequential! {
    Net: [784] -> [10] =
        LinearReLU<784, 64>,
        Linear<65, 10>
}

fn main() {}
