use nn::*;

sequential! {
    Net: [4, 8] -> [8, 4] = Transpose<0, 2>
}

fn main() {}
