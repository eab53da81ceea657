use nn::*;

sequential! {
    Net: [5, 3, 8, 8] -> [5, 4, 6, 6] = Tok<Conv2D<1, 4, 3>>
}

fn main() {}
