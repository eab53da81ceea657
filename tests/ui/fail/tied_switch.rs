use nn::*;

#[module]
struct Net {
    fc: Linear<4, 1>,
    #[tied = "fc.bias"]
    gate: GradGate,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![1] {
        self.gate(self.fc(x))
    }
}

fn main() {}
