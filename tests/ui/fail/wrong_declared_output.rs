use nn::*;

sequential! {
    Net: [784] -> [11] = LinearReLU<784, 64>, Linear<64, 10>
}

fn main() {}
