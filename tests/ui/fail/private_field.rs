use nn::*;

sequential! {
    Net: [4] -> [8] = Linear<4, 8>
}

fn peek() -> usize {
    <Net as Layer<T![4]>>::RULE.out.len
}

fn main() {}
