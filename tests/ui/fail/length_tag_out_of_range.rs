use nn::*;

#[module]
struct Net {
    fc: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: S2<UpTo<C<8>, 7>, C<4>>) -> S2<UpTo<C<8>, 7>, C<4>> {
        self.fc(x)
    }
}

fn main() {}
