use nn::*;

sequential! {
    /// A policy.
    pub Policy: [8] -> [4] = LinearTanh<8, 64>, LinearTanh<64, 64>, head: Linear<64, 4>
}

#[module]
struct Block<const D: usize> {
    up: LinearGELUTanh<D, { 4 * D }>,
    down: Linear<{ 4 * D }, D>,
}
#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![3, D]) -> T![3, D] {
        let h = self.up(x);
        x + self.down(h) * 0.5
    }
}
#[module]
struct Two<const D: usize> {
    a: Block<{ 2 * D }>,
    b: Block<{ 2 * D }>,
}
#[module]
impl<const D: usize> Two<D> {
    fn forward(&self, x: T![3, 2 * D]) -> T![3, 2 * D] {
        self.b(self.a(x))
    }
}
#[module]
type Small = Two<4>;

fn main() {
    let cpu = Cpu::<f64>::new().unwrap();
    let mut d = Describe::default();
    <Small as Module<Cpu<f64>, T![3, 8]>>::describe(&mut d);
    <Policy as Module<Cpu<f64>, T![8]>>::describe(&mut d);
    for r in d.rows {
        println!("{:?} {} {} {} {}", r.path, r.layer, r.out, r.params, r.route);
    }
    println!("{:?}", Small::default());
    let n = <Policy as Params>::TREE.params();
    println!("{n} {:?}", <Policy as Layer<T![8]>>::SAVED);
    let p = vec![0.1f64; n];
    let x = vec![0.5; 8];
    let mut y = vec![0.0; 4];
    let mut cx = Ctx::new(&cpu, 1);
    let mut s = cpu.alloc::<u8>(<Policy as Layer<T![8]>>::SCRATCH.at(1, 8)).unwrap();
    <Policy as Module<Cpu<f64>, T![8]>>::forward(&mut cx, Forward { params: &p, state: State::Read(&p[..0]), x: Tensors::real(&x[..]), y: TensorsMut::real(&mut y[..]), saved: Region::empty(), scratch: Region::new(<Cpu<f64> as Memory>::view_mut(&mut s)) });
    println!("{y:?}");
}
