use nn::*;

sequential! {
    Net: [4, 8] -> [4, 4] = Slice<1, 6, 10>
}

fn main() {}
