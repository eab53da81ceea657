use nn::*;

sequential! {
    Net: [8, 3, 3] -> [8] = MaxPool2D<2>, MaxPool2D<2>, Flatten
}

fn main() {}
