//! The parameters of a model as a flat table, made once when the model is.

use std::ops::Range;

use nn_kernels::philox::Philox;
use nn_kernels::{Float, Packing};

use crate::dims::{Dims, Extent};
use crate::error::Error;
use crate::init::Init;
use crate::layer::Params;
use crate::tree::{Child, Node, Role, Stored};

/// One parameter of a model.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Dotted path: its name in a checkpoint.
    pub path: String,
    /// Its shape in a checkpoint.
    pub dims: Dims,
    /// What it is for.
    pub role: Role,
    stored: Stored,
    init: Init,
    /// In the state arena and not among the parameters.
    pub(crate) in_state: bool,
    /// First element in its arena.
    pub(crate) offset: usize,
    /// How far apart two neighbours of a row lie, if it lies transposed: the rows of the whole matrix, of which
    /// this may be some only.
    step: usize,
    /// The first of these, if it is packed: it is then where the whole matrix is.
    first: usize,
}

impl Parameter {
    /// How many values it has.
    pub fn len(&self) -> usize {
        self.dims.numel()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts values, which are in the checkpoint's order, into an arena laid out as the parameters (or the state, if
    /// that is where it is).
    ///
    /// # Errors
    /// There are more or fewer values than it has, or the arena is too short.
    pub fn write<T: Float>(&self, values: &[T], arena: &mut [T]) -> Result<(), Error> {
        self.expect(values.len())?;
        let found = arena.len().saturating_sub(self.offset);
        let place = arena.get_mut(self.span()).ok_or_else(|| self.too_short(found))?;
        self.scatter(values, place);
        Ok(())
    }

    /// Its values in such an arena, in the checkpoint's order.
    ///
    /// # Errors
    /// The arena is too short.
    pub fn read<T: Float>(&self, arena: &[T]) -> Result<Vec<T>, Error> {
        let found = arena.len().saturating_sub(self.offset);
        Ok(self.gather(arena.get(self.span()).ok_or_else(|| self.too_short(found))?))
    }

    /// Whether so many values are as many as it has.
    pub(crate) fn expect(&self, found: usize) -> Result<(), Error> {
        if found == self.len() {
            return Ok(());
        }
        Err(Error::ParameterLength { path: self.path.clone(), expected: self.len(), found })
    }

    fn too_short(&self, found: usize) -> Error {
        Error::ParameterLength { path: self.path.clone(), expected: self.span().len(), found }
    }

    /// From its first element in the arena to its last. If it is a part of a matrix, other parts lie in between.
    pub(crate) fn span(&self) -> Range<usize> {
        let len = match self.stored {
            _ if self.is_empty() => 0,
            Stored::AsIs => self.len(),
            Stored::Transposed => (self.dims.n(1) - 1) * self.step + self.dims.n(0),
            Stored::Packed(packing) => packing.slots(self.step, self.width()),
        };
        self.offset..self.offset + len
    }

    /// Values in a row of a matrix.
    fn width(&self) -> usize {
        self.dims.product(1, self.dims.rank()).n
    }

    /// How it is packed, if it is: then what lies in its span is no numbers, and may be other parameters' as well.
    pub(crate) fn packing(&self) -> Option<Packing> {
        match self.stored {
            Stored::Packed(packing) => Some(packing),
            Stored::AsIs | Stored::Transposed => None,
        }
    }

    /// The stretches of the arena that it fills.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Range<usize>> {
        let (count, len) = match self.stored {
            _ if self.is_empty() => (0, 0),
            Stored::Transposed if self.step != self.dims.n(0) => (self.dims.n(1), self.dims.n(0)),
            _ => (1, self.span().len()),
        };
        (0..count).map(move |i| self.offset + i * self.step).map(move |start| start..start + len)
    }

    /// Where in the span a value of the checkpoint's lies.
    fn place(&self, i: usize) -> usize {
        match self.stored {
            Stored::AsIs | Stored::Packed(_) => i,
            Stored::Transposed => (i % self.dims.n(1)) * self.step + i / self.dims.n(1),
        }
    }

    /// Puts values in the checkpoint's order where they belong in the span.
    pub(crate) fn scatter<S: Float, T: Float>(&self, values: &[S], span: &mut [T]) {
        if let Some(packing) = self.packing() {
            return packing.write(self.width(), self.first, values, span);
        }
        for (i, value) in values.iter().enumerate() {
            span[self.place(i)] = T::from_f64(value.to_f64());
        }
    }

    /// The values of the span in the checkpoint's order.
    pub(crate) fn gather<T: Float>(&self, span: &[T]) -> Vec<T> {
        if let Some(packing) = self.packing() {
            let mut values = vec![T::ZERO; self.len()];
            packing.read(self.width(), self.first, span, &mut values);
            return values;
        }
        (0..self.len()).map(|i| span[self.place(i)]).collect()
    }

    /// Its first values, in the checkpoint's order. They depend on the seed and the path alone, so that a layer
    /// more or less leaves the others as they are.
    pub(crate) fn initial(&self, seed: u64) -> Vec<f64> {
        let mut values = vec![0.0; self.len()];
        self.init.fill(&self.dims, &mut Philox::new(seed, hash(&self.path)), &mut values);
        values
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// A stretch of the parameter arena that is treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First element.
    pub start: usize,
    /// Elements.
    pub len: usize,
    /// Whether weight decay applies.
    pub decays: bool,
}

/// The parameters of a layer or module, state included: where each lies in its arena, and how.
pub fn parameters_of<M: Params>() -> Vec<Parameter> {
    parameters(M::TREE, None)
}

/// Every parameter below `tree`, in the order of its parts.
pub(crate) fn parameters(tree: &Node, init: Option<Init>) -> Vec<Parameter> {
    let mut all = Vec::new();
    walk(
        tree,
        &Place {
            path: String::new(),
            params: 0,
            state: 0,
            frozen: false,
            init: None,
            own: None,
            model: init,
        },
        &mut all,
    );
    all
}

/// Where a node is, and what its surroundings decide.
struct Place {
    path: String,
    params: usize,
    state: usize,
    /// Whether parameters lie in the state arena.
    frozen: bool,
    /// What an `#[init(..)]` says, here or further out.
    init: Option<Init>,
    /// What one says of this very layer, which is more than the layer decides itself.
    own: Option<Init>,
    /// What the model's initialiser is, where none does.
    model: Option<Init>,
}

fn walk(node: &Node, at: &Place, all: &mut Vec<Parameter>) {
    leaves(node, at, None, all);
    for (i, child) in node.children.iter().enumerate() {
        if child.tied.is_some() {
            continue;
        }
        let field = node.field(i);
        for copy in 0..child.times.unwrap_or(1) {
            let (params, state) = match child.frozen {
                true => {
                    let start = at.state + field.state + copy * (child.node.params() + child.node.state());
                    (start, start + child.node.params())
                }
                false => (
                    at.params + field.params + copy * child.node.params(),
                    at.state + field.state + copy * child.node.state(),
                ),
            };
            let mut place = Place {
                path: join(&at.path, if child.pieces.is_some() { "" } else { child.name }),
                params,
                state,
                frozen: at.frozen || child.frozen,
                // The outer choice is the more general one: the inner wins.
                init: child.init.or(at.init),
                // What does not show stands for what it holds.
                own: child.init.or(if child.name.is_empty() { at.own } else { None }),
                model: at.model,
            };
            if child.times.is_some() {
                place.path = join(&place.path, &copy.to_string());
            }
            match child.pieces {
                None => walk(child.node, &place, all),
                Some(pieces) => {
                    let outer = place.path.clone();
                    for (k, piece) in pieces.iter().enumerate() {
                        place.path = join(&outer, piece.name);
                        leaves(child.node, &place, Some((child, k)), all);
                    }
                }
            }
        }
    }
}

/// The own parameters of a node, or piece `k` of each of those of a field that is several of a checkpoint's.
fn leaves(node: &Node, at: &Place, piece: Option<(&Child, usize)>, all: &mut Vec<Parameter>) {
    for (i, leaf) in node.leaves.iter().enumerate() {
        let is_state = leaf.role.in_state();
        let start = if is_state { at.state } else { at.params } + node.leaf_offset(i);
        let step = leaf.dims.n_or_one(0);
        let (first, dims) = match piece.map(|(child, k)| child.rows(k, step)) {
            None => (0, leaf.dims),
            Some((first, rows)) => (first, leaf.dims.with(0, Extent::new(rows))),
        };
        let apart = match leaf.stored {
            Stored::AsIs => leaf.dims.product(1, leaf.dims.rank()).n,
            Stored::Transposed => 1,
            Stored::Packed(_) => 0,
        };
        all.push(Parameter {
            path: join(&at.path, leaf.name),
            dims,
            role: leaf.role,
            stored: leaf.stored,
            init: choose(
                leaf.init,
                leaf.role,
                leaf.dims.rank(),
                if leaf.decided { at.own } else { at.init.or(at.model) },
            ),
            in_state: is_state || at.frozen,
            offset: start + first * apart,
            step,
            first,
        });
    }
}

/// Dotted, empty parts left out.
fn join(path: &str, name: &str) -> String {
    match (path.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => path.to_owned(),
        _ => format!("{path}.{name}"),
    }
}

/// What a parameter starts as, given an initialiser that replaces the layer's own.
fn choose(own: Init, role: Role, rank: usize, replaced: Option<Init>) -> Init {
    // A frozen one starts as what it is besides.
    let role = match role {
        Role::Frozen if rank > 1 => Role::Weight,
        Role::Frozen => Role::Bias,
        other => other,
    };
    match (replaced, role) {
        (None, _) | (_, Role::State) => own,
        (Some(Init::Constant(c)), _) => Init::Constant(c),
        (Some(init), Role::Weight) => init,
        (Some(_), Role::Bias) => Init::Constant(0.0),
        (Some(_), Role::Scale | Role::Frozen) => own,
    }
}

/// The stretches of the state arena, `len` elements long, that a call may change: all but what is frozen.
pub(crate) fn changing(parameters: &[Parameter], len: usize) -> Vec<Range<usize>> {
    let mut starts: Vec<_> =
        parameters.iter().filter(|p| p.in_state).map(|p| (p.offset, p.role == Role::State)).collect();
    starts.sort_unstable();
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for (i, (start, _)) in starts.iter().enumerate().filter(|(_, (_, changes))| *changes) {
        let end = starts.get(i + 1).map_or(len, |next| next.0);
        match stretches.last_mut() {
            Some(last) if last.end == *start => last.end = end,
            _ => stretches.push(*start..end),
        }
    }
    stretches
}

/// The stretches of the parameter arena, neighbours that are treated alike in one.
pub(crate) fn runs(parameters: &[Parameter], len: usize) -> Vec<Run> {
    let mut starts: Vec<_> =
        parameters.iter().filter(|p| !p.in_state).map(|p| (p.offset, p.role == Role::Weight)).collect();
    starts.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for (i, (start, decays)) in starts.iter().enumerate() {
        let end = starts.get(i + 1).map_or(len, |next| next.0);
        match runs.last_mut() {
            Some(run) if run.decays == *decays => run.len += end - start,
            _ => runs.push(Run { start: *start, len: end - start, decays: *decays }),
        }
    }
    runs
}
