use nn::*;

sequential! {
    #[module(rename = "x")]
    Net: [4] -> [4] = a: Linear<4, 4>, #[rename = "a"] Linear<4, 4>
}

fn main() {}
