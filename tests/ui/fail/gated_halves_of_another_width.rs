use nn::*;

sequential! {
    Net: [4] -> [6] = Linear<4, 6>, SwiGLU<6>
}

fn main() {}
