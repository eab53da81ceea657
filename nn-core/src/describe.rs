use nn_kernels::{Cpu, Device};

use crate::Size;
use crate::layer::{Declared, Layer, Module};
use crate::signature::{Sig, Signature};
use crate::tree::{Child, Node};

/// One leaf of a model, as `summary()` and `routes()` show it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Dotted path.
    pub path: String,
    /// The layer with its arguments.
    pub layer: String,
    /// What it gives, without the batch.
    pub out: Sig,
    /// Parameters, without padding; zero where they are another's.
    pub params: usize,
    /// Multiply-adds a sample.
    pub macs: usize,
    /// What forward leaves for the vjp, the values that it reads included.
    pub saved: Size,
    /// Working memory, the larger of both directions.
    pub scratch: Size,
    /// The kernel it got, if there is a choice.
    pub route: &'static str,
}

/// A walk over a model's leaves, in the order of their places.
#[derive(Debug, Default)]
pub struct Describe {
    path: Vec<String>,
    /// Within how many parts whose parameters are another's.
    tied: usize,
    /// A row a leaf.
    pub rows: Vec<Row>,
}

impl Describe {
    /// The leaves of a model.
    pub fn of<M: Module<D, X>, D: Device, X: Signature>() -> Self {
        let mut all = Self::default();
        M::describe(&mut all);
        all
    }

    /// Adds a leaf.
    pub fn leaf<L: Layer<X> + ?Sized, D: Device, X: Signature>(&mut self, route: &'static str) {
        let read = X::SIG.size().when(L::KEEPS_X).plus(L::RULE.out.size().when(L::KEEPS_Y));
        self.rows.push(Row {
            path: self.path.join("."),
            layer: L::LABEL.as_str().to_owned(),
            out: L::RULE.out,
            params: if self.tied > 0 { 0 } else { count(L::TREE) },
            macs: L::MACS,
            saved: L::SAVED.plus(read),
            scratch: L::SCRATCH.max(L::VJP_SCRATCH),
            route,
        });
    }

    /// Goes down into a part of a module.
    pub fn part(&mut self, part: &Child, walk: impl FnOnce(&mut Self)) {
        self.tied += usize::from(part.tied.is_some());
        self.within(part.name, walk);
        self.tied -= usize::from(part.tied.is_some());
    }

    /// Goes down into what has this name; an empty one does not show.
    pub fn within(&mut self, name: &str, walk: impl FnOnce(&mut Self)) {
        let shown = !name.is_empty();
        if shown {
            self.path.push(name.to_owned());
        }
        walk(self);
        if shown {
            self.path.pop();
        }
    }
}

/// The kernel that a layer got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Dotted path of the layer.
    pub path: String,
    /// The layer with its arguments.
    pub layer: String,
    /// Its kernel; empty where there is no choice.
    pub route: &'static str,
}

/// What each layer of a model got on the processor, in the order of their places.
///
/// ```
/// # use nn_core as nn;
/// nn::sequential! { Net: [2] -> [2] = fc1: nn::Linear<2, 16>, nn::ReLU, fc2: nn::Linear<16, 2> }
/// let routes = nn::routes::<Net>();
/// assert_eq!(routes[2].path, "fc2");
/// assert_eq!(routes[2].layer, "Linear<16, 2>");
/// assert!(!routes[2].route.is_empty() && routes[1].route.is_empty());
/// ```
pub fn routes<M: Declared + Module<Cpu<f32>, <M as Declared>::In>>() -> Vec<Route> {
    routes_on::<M, Cpu<f32>>()
}

/// What each layer of a model got on the device `D`, as [`routes`] tells it of the processor.
pub fn routes_on<M: Declared + Module<D, <M as Declared>::In>, D: Device>() -> Vec<Route> {
    let rows = Describe::of::<M, D, M::In>().rows.into_iter();
    rows.map(|Row { path, layer, route, .. }| Route { path, layer, route }).collect()
}

/// Parameters below a node, without padding.
pub(crate) fn count(node: &Node) -> usize {
    let own: usize =
        node.leaves.iter().filter(|l| l.role != crate::tree::Role::State).map(|l| l.dims.numel()).sum();
    let below: usize =
        node.children.iter().filter(|c| c.tied.is_none()).map(|c| count(c.node) * c.times.unwrap_or(1)).sum();
    own + below
}
