//! Parameters as fields with shapes: `weights.view().fc1.weight[[3, 5]]`.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use nn_kernels::{Cpu, cpu};

use crate::dims::{Dim, Dims, MAX_RANK};
use crate::layer::{Declared, Params};
use crate::model::Model;
use crate::signature::{S0, S1, S2, S3, S4, S5, S6, Signature};
use crate::tree::{Leaf, Node, Stored};
use crate::weights::Weights;

/// How a view reaches its values: a slice, shared (`&[E]`) or not (`&mut [E]`).
pub trait Access: Default + std::ops::Deref<Target = [Self::Elem]> {
    /// The type of the values.
    type Elem: Copy;
    /// The first `n` values, and the others.
    fn split(self, n: usize) -> (Self, Self);
}

impl<E: Copy> Access for &[E] {
    type Elem = E;
    fn split(self, n: usize) -> (Self, Self) {
        self.split_at(n)
    }
}

impl<E: Copy> Access for &mut [E] {
    type Elem = E;
    fn split(self, n: usize) -> (Self, Self) {
        self.split_at_mut(n)
    }
}

/// A layer whose parameters can be viewed, each with its shape. `#[module]`, `sequential!` and `#[layer]` implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer",
    note = "layers are declared with `#[module]`, `sequential!` or `#[layer]`"
)]
pub trait Views: Params {
    /// A struct with a field for each part or parameter; `()` if there is none.
    type View<A: Access>: FromArenas<A>;
}

/// A view, made of where its layer's parameters are.
pub trait FromArenas<A: Access>: Sized {
    /// Takes what is the layer's.
    fn from_arenas(arenas: Arenas<A>) -> Self;
}

impl<A: Access> FromArenas<A> for () {
    fn from_arenas(_: Arenas<A>) {}
}

/// Of a layer that is repeated: the view of each copy.
impl<A: Access, V: FromArenas<A>> FromArenas<A> for Vec<V> {
    fn from_arenas(mut arenas: Arenas<A>) -> Self {
        let tree = arenas.tree;
        let Some(child) = tree.children.first() else { return Self::new() };
        let mut copy = || arenas.take(child.node, child.node.params(), child.node.state());
        (0..child.times.unwrap_or(1)).map(|_| V::from_arenas(copy())).collect()
    }
}

/// Of a raw parameter: itself.
impl<A: Access, S: Signature> FromArenas<A> for TensorView<A, S> {
    fn from_arenas(mut arenas: Arenas<A>) -> Self {
        arenas.leaf("").expect("a raw parameter is one")
    }
}

/// The stretches of the parameter and state arenas that are yet to be handed out as views, front to back.
#[derive(Debug)]
pub struct Arenas<A> {
    tree: &'static Node,
    params: A,
    state: A,
    /// The next of the layer's own parameters.
    next: usize,
}

impl<A: Access> Arenas<A> {
    /// From a layer's parameters and its state. Either may be empty: then so are the tensors in it. Where the layer wraps
    /// another, they are that one's.
    pub fn new(tree: &'static Node, params: A, state: A) -> Self {
        let mut all = Self { tree, params, state, next: 0 };
        while let (true, [inner]) = (all.tree.wraps, all.tree.children) {
            if inner.frozen {
                all.params = all.take(&Node::EMPTY, 0, inner.node.params()).state;
            }
            all.tree = inner.node;
        }
        all
    }

    /// How many parts the layer has.
    pub fn children(&self) -> usize {
        self.tree.children.len()
    }

    /// The view of part `i`, after those before it. One that is tied has nothing of its own: its tensors are empty.
    pub fn child<V: FromArenas<A>>(&mut self, i: usize) -> V {
        let (field, child) = (self.tree.field(i), &self.tree.children[i]);
        V::from_arenas(match (child.tied, child.frozen) {
            (Some(_), _) => Self::new(child.node, A::default(), A::default()),
            (None, false) => self.take(child.node, field.params_len, field.state_len),
            (None, true) => {
                let params = self.take(&Node::EMPTY, 0, child.node.params()).state;
                let state = self.take(&Node::EMPTY, 0, child.node.state()).state;
                Self::new(child.node, params, state)
            }
        })
    }

    /// The own parameter `name`, after those before it, if the layer has it, and as numbers: what is
    /// [packed](Stored::Packed) can't be viewed.
    ///
    /// # Panics
    /// The layer has it in another shape, or before one that was asked for already.
    pub fn leaf<S: Signature>(&mut self, name: &str) -> Option<TensorView<A, S>> {
        let leaves = self.tree.leaves;
        let i = leaves.iter().position(|leaf| leaf.name == name)?;
        assert!(i >= self.next, "views follow the order of the parameters");
        for skipped in &leaves[self.next..i] {
            self.take_leaf(skipped);
        }
        self.next = i + 1;
        let (leaf, dims) = (&leaves[i], S::SIG.dims(0));
        if let Stored::Packed(_) = leaf.stored {
            self.take_leaf(leaf);
            return None;
        }
        assert!(dims.same(&leaf.dims), "`{name}` is viewed as {dims}, but it is {}", leaf.dims);
        Some(TensorView { data: self.take_leaf(leaf), dims, stored: leaf.stored, shape: PhantomData })
    }

    fn take_leaf(&mut self, leaf: &Leaf) -> A {
        let room = leaf.room();
        let own = match leaf.role.in_state() {
            true => self.take(&Node::EMPTY, 0, room).state,
            false => self.take(&Node::EMPTY, room, 0).params,
        };
        if own.is_empty() { own } else { own.split(leaf.elements()).0 }
    }

    fn take(&mut self, tree: &'static Node, params: usize, state: usize) -> Self {
        fn front<A: Access>(all: &mut A, n: usize) -> A {
            if all.is_empty() {
                return A::default();
            }
            let (front, rest) = std::mem::take(all).split(n);
            *all = rest;
            front
        }
        Self::new(tree, front(&mut self.params, params), front(&mut self.state, state))
    }
}

/// A parameter in place, with its shape `S` in a checkpoint: PyTorch's. It is indexed by as many numbers as `S` has axes,
/// whatever way it lies in memory.
pub struct TensorView<A, S> {
    data: A,
    dims: Dims,
    stored: Stored,
    shape: PhantomData<S>,
}

impl<A: Access, S: Signature> TensorView<A, S> {
    /// Its shape.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// How many values there are to see: none if the view is of an arena that doesn't hold this parameter, as that of
    /// gradients doesn't hold running statistics.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is nothing to see.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Its values in the checkpoint's order, row by row.
    pub fn to_vec(&self) -> Vec<A::Elem> {
        (0..self.len()).map(|i| self.data[self.place(i)]).collect()
    }

    /// Where value `i` of the checkpoint's order lies.
    fn place(&self, i: usize) -> usize {
        match self.stored {
            Stored::AsIs | Stored::Packed(_) => i,
            Stored::Transposed => {
                let (rows, cols) = (self.dims.n(0), self.dims.n(1));
                (i % cols) * rows + i / cols
            }
        }
    }

    fn at<const R: usize>(&self, index: [usize; R]) -> usize {
        let mut i = 0;
        for (axis, k) in index.into_iter().enumerate() {
            let n = self.dims.n(axis);
            assert!(k < n, "index {index:?} is out of range for a tensor of shape {}", self.dims);
            i = i * n + k;
        }
        self.place(i)
    }
}

impl<A: Access + std::ops::DerefMut, S: Signature> TensorView<A, S> {
    /// Sets all values, given in the checkpoint's order.
    ///
    /// # Panics
    /// There are more or fewer values than the tensor has.
    pub fn copy_from(&mut self, values: &[A::Elem]) {
        assert_eq!(values.len(), self.len(), "a tensor of shape {} has another number of values", self.dims);
        for (i, value) in values.iter().enumerate() {
            let place = self.place(i);
            self.data[place] = *value;
        }
    }

    /// Sets all values to one.
    pub fn fill(&mut self, value: A::Elem) {
        self.data.fill(value);
    }
}

impl<A: Access, S: Signature> std::fmt::Debug for TensorView<A, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.dims)
    }
}

macro_rules! index {
    ($($shape:ident<$($axis:ident),*> $rank:literal)*) => {$(
        impl<A: Access, $($axis: Dim),*> Index<[usize; $rank]> for TensorView<A, $shape<$($axis),*>> {
            type Output = A::Elem;
            fn index(&self, index: [usize; $rank]) -> &A::Elem {
                &self.data[self.at(index)]
            }
        }
        impl<A: Access + std::ops::DerefMut, $($axis: Dim),*> IndexMut<[usize; $rank]> for TensorView<A, $shape<$($axis),*>> {
            fn index_mut(&mut self, index: [usize; $rank]) -> &mut A::Elem {
                let at = self.at(index);
                &mut self.data[at]
            }
        }
    )*};
}
index! {
    S0<> 0
    S1<P> 1
    S2<P, Q> 2
    S3<P, Q, R> 3
    S4<P, Q, R, T> 4
    S5<P, Q, R, T, U> 5
    S6<P, Q, R, T, U, V> 6
}
const _: () = assert!(MAX_RANK == 6, "every rank has an index");

impl<M: Declared + Views, E: cpu::Real> Weights<M, Cpu<E>> {
    /// Parameters and state as fields, each with its shape, in place.
    ///
    /// ```
    /// use nn::{Cpu, Linear, LinearReLU, Weights, sequential};
    ///
    /// sequential! { Net: [3] -> [2] = fc1: LinearReLU<3, 4>, fc2: Linear<4, 2> }
    ///
    /// let mut weights = Weights::<Net, Cpu<f32>>::new(Cpu::default(), 1)?;
    /// let (fc1, fc2) = { let all = weights.view_mut(); (all.fc1, all.fc2) };
    /// let (mut weight, mut bias) = (fc1.weight, fc2.bias.expect("`Linear` has a bias"));
    /// weight[[3, 2]] = 0.5; // row 3 of [4, 3]; `weight[3]` would not compile
    /// bias.fill(1.0);
    /// assert_eq!(weights.view().fc1.weight[[3, 2]], 0.5);
    /// assert_eq!(weights.get("fc1.weight")?[3 * 3 + 2], 0.5);
    /// assert_eq!(weights.get("fc2.bias")?, [1.0, 1.0]);
    /// # Ok::<(), nn::Error>(())
    /// ```
    pub fn view(&self) -> M::View<&[E]> {
        FromArenas::from_arenas(Arenas::new(M::TREE, self.params(), self.state()))
    }

    /// The same, to be changed.
    pub fn view_mut(&mut self) -> M::View<&mut [E]> {
        let (params, state) = self.arenas_mut();
        FromArenas::from_arenas(Arenas::new(M::TREE, params, state))
    }
}

impl<M: Declared + Views, E: cpu::Real> Model<M, Cpu<E>> {
    /// The gradients as fields, each with its parameter's shape. What is not optimised has none: it is empty.
    pub fn gradient_view(&self) -> M::View<&[E]> {
        FromArenas::from_arenas(Arenas::new(M::TREE, self.gradients(), &[]))
    }
}
