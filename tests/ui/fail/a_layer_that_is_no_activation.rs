use nn::*;

sequential! {
    Net: [4] -> [8] = LinearAct<4, 8, Linear<8, 8>>
}

fn main() {}
