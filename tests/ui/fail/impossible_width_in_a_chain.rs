use nn::*;

sequential! {
    Net<const D: usize>: [D] -> [D] = Linear<D, { D / 3 }>, Linear<{ D / 3 }, D>
}

#[module]
type Bad = Net<10>;

fn main() {}
