use nn::*;

sequential! {
    Net: [8] -> [4] = Linear<8, 6>, LoRALinear<8, 4, 2, 0.5>
}

fn main() {}
