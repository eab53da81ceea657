use nn::*;

sequential! {
    Net: [12] -> [12, 64] = Embedding<1000, 64>
}

fn main() {}
