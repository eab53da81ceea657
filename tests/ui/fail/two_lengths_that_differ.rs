use nn::*;

#[module]
struct Net {
    fc: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, q: T![..8, 4], k: S2<UpTo<C<8>, 1>, C<4>>) -> T![..8, 4] {
        self.fc(q) + k
    }
}

fn main() {}
