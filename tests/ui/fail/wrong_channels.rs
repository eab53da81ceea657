use nn::*;

sequential! {
    LeNet: [1, 28, 28] -> [10] =
        Conv2D<1, 16, 3, 1, 1>, ReLU, MaxPool2D<2>,
        Conv2D<32, 32, 3, 1, 1>, ReLU, MaxPool2D<2>,
        Flatten, Linear<1568, 10>
}

fn main() {}
