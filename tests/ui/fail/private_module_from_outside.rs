use nn::*;

mod nets {
    use nn::*;

    sequential! {
        Net: [4] -> [8] = Linear<4, 8>
    }
}

sequential! {
    Outer: [4] -> [8] = nets::Net
}

fn main() {}
