use super::compile::File;
use super::launch::{Grid, Kernel, Struct};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::ops::{Binary, Elementwise, GatedSpec, Unary};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Elementwise, name)
}

/// A function as kernels know it.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Function {
    code: u64,
    constants: [f64; 2],
}

impl Function {
    pub(super) fn new(f: Unary) -> Self {
        let (code, constants) = match f {
            Unary::Identity => (0, [0.0; 2]),
            Unary::Relu => (1, [0.0; 2]),
            Unary::Tanh => (2, [0.0; 2]),
            Unary::Sigmoid => (3, [0.0; 2]),
            Unary::Silu => (4, [0.0; 2]),
            Unary::Gelu => (5, [0.0; 2]),
            Unary::GeluTanh => (6, [0.0; 2]),
            Unary::Mish => (7, [0.0; 2]),
            Unary::Elu => (8, [0.0; 2]),
            Unary::Affine { scale, shift } => (9, [scale, shift]),
            Unary::Divide { by } => (10, [by, 0.0]),
            Unary::Reciprocal { c } => (11, [c, 0.0]),
        };
        Self { code, constants }
    }
}

impl<E: CudaReal> Cuda<E> {
    fn two_operands(&self, f: Binary, a: View<'_, E>, b: View<'_, E>, y: &ViewMut<'_, E>) {
        let code: u32 = match f {
            Binary::Add => 0,
            Binary::Sub => 1,
            Binary::Mul => 2,
            Binary::Div => 3,
        };
        let n = y.len();
        self.record().launch(kernel("binary"), Grid::flat(n)).arg(code).arg(a).arg(b).arg(y).arg(n).done();
    }

    /// dx = f′·dy, given x or y = f(x), whichever the derivative is a function of.
    pub(super) fn pull(&self, f: Unary, known: View<'_, E>, dy: View<'_, E>, dx: &ViewMut<'_, E>) {
        let n = dx.len();
        let f = Function::new(f);
        let mut record = self.record();
        let launch = record.launch(kernel("unary_vjp"), Grid::flat(n)).arg(Struct(&f));
        launch.arg(known).arg(dy).arg(dx).arg(n).done();
    }

    /// y = f(y).
    pub(super) fn apply_in_place(&self, f: Unary, y: &ViewMut<'_, E>) {
        let n = y.len();
        let f = Function::new(f);
        self.record().launch(kernel("unary_in_place"), Grid::flat(n)).arg(Struct(&f)).arg(y).arg(n).done();
    }

    /// z = f′(z)·dy.
    pub(super) fn pull_in_place(&self, f: Unary, dy: View<'_, E>, z: &ViewMut<'_, E>) {
        let n = z.len();
        let f = Function::new(f);
        let mut record = self.record();
        record.launch(kernel("pull_in_place"), Grid::flat(n)).arg(Struct(&f)).arg(dy).arg(z).arg(n).done();
    }
}

impl<E: CudaReal> Elementwise for Cuda<E> {
    fn unary(&self, f: Unary, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "unary: x and y differ in length");
        let n = y.len();
        let f = Function::new(f);
        self.record().launch(kernel("unary"), Grid::flat(n)).arg(Struct(&f)).arg(x).arg(&y).arg(n).done();
    }

    fn unary_vjp(&self, f: Unary, x: View<'_, E>, y: View<'_, E>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        assert_eq!(dy.len(), dx.len(), "unary_vjp: dy and dx differ in length");
        let known = match (f.needs_x(), f.needs_y()) {
            (true, _) => x,
            (_, true) => y,
            _ => dy,
        };
        assert_eq!(known.len(), dx.len(), "unary_vjp: the operand that {f:?} needs and dx differ in length");
        self.pull(f, known, dy, &dx);
    }

    fn binary(&self, f: Binary, a: View<'_, E>, b: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(a.len(), y.len(), "binary: a and y differ in length");
        assert_eq!(b.len(), y.len(), "binary: b and y differ in length");
        self.two_operands(f, a, b, &y);
    }

    fn binary_vjp(
        &self,
        f: Binary,
        a: View<'_, E>,
        b: View<'_, E>,
        dy: View<'_, E>,
        da: Option<ViewMut<'_, E>>,
        db: Option<ViewMut<'_, E>>,
    ) {
        let operands = matches!(f, Binary::Mul | Binary::Div);
        for (name, operand) in [("a", a), ("b", b)] {
            assert!(
                operand.len() == dy.len() || !operands && operand.len() == 0,
                "binary_vjp: {name} has {} values and dy has {}",
                operand.len(),
                dy.len()
            );
        }
        if let Some(da) = da {
            assert_eq!(da.len(), dy.len(), "binary_vjp: da and dy differ in length");
            match f {
                Binary::Add | Binary::Sub => self.copy(dy, da),
                Binary::Mul | Binary::Div => self.two_operands(f, dy, b, &da),
            }
        }
        if let Some(db) = db {
            assert_eq!(db.len(), dy.len(), "binary_vjp: db and dy differ in length");
            match f {
                Binary::Add => self.copy(dy, db),
                Binary::Sub => self.unary(Unary::Divide { by: -1.0 }, dy, db),
                Binary::Mul => self.two_operands(Binary::Mul, dy, a, &db),
                Binary::Div => {
                    let n = db.len();
                    let mut record = self.record();
                    let launch = record.launch(kernel("divisor_vjp"), Grid::flat(n));
                    launch.arg(a).arg(b).arg(dy).arg(&db).arg(n).done();
                }
            }
        }
    }

    fn gated(&self, s: &GatedSpec, x: View<'_, E>, y: ViewMut<'_, E>) {
        s.check("gated", x.len(), y.len());
        let f = Function::new(s.act);
        let mut record = self.record();
        let launch = record.launch(kernel("gated"), Grid::flat(y.len())).arg(Struct(&f)).arg(x).arg(&y);
        launch.arg(s.rows).arg(s.cols).arg(s.gate_last).done();
    }

    fn gated_vjp(&self, s: &GatedSpec, x: View<'_, E>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        s.check("gated_vjp", x.len(), dy.len());
        s.check("gated_vjp", dx.len(), dy.len());
        let f = Function::new(s.act);
        let mut record = self.record();
        let launch = record.launch(kernel("gated_vjp"), Grid::flat(dy.len()));
        let launch = launch.arg(Struct(&f)).arg(x).arg(dy).arg(&dx).arg(s.rows).arg(s.cols);
        launch.arg(s.gate_last).arg(s.act.needs_y()).done();
    }

    fn copy_unless(&self, switch: View<'_, E::Wide>, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(switch.len(), 1, "copy_unless: the switch is one value");
        assert_eq!(x.len(), y.len(), "copy: x and y differ in length");
        let n = y.len();
        let mut record = self.record();
        record.launch(kernel("copy_unless"), Grid::flat(n)).arg(switch).arg(x).arg(&y).arg(n).done();
    }

    fn add_assign(&self, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "add_assign: x and y differ in length");
        let n = y.len();
        self.record().launch(kernel("add_assign"), Grid::flat(n)).arg(x).arg(&y).arg(n).done();
    }

    fn fill(&self, value: f64, y: ViewMut<'_, E>) {
        let n = y.len();
        self.record().launch(kernel("fill"), Grid::flat(n)).arg(value).arg(&y).arg(n).done();
    }

    fn copy(&self, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "copy: x and y differ in length");
        let n = y.len();
        self.record().launch(kernel("copy"), Grid::flat(n)).arg(x).arg(&y).arg(n).done();
    }

    fn all_finite(&self, x: View<'_, E>) -> bool {
        let mut record = self.record();
        let flag = record.scratch(size_of::<u32>());
        record.launch(kernel("clear"), Grid::flat(1)).arg(flag).done();
        let n = x.len();
        record.launch(kernel("find_non_finite"), Grid::flat(n)).arg(x).arg(n).arg(flag).done();
        let mut found = [0_u32];
        record.read(flag, &mut found);
        found[0] == 0
    }
}
