use std::collections::HashMap;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{BinOp, Block, Expr, ExprLit, Ident, Lit, Pat, Stmt, UnOp};

use crate::errors::{Errors, ends};
use crate::generics::{Consts, sci};

/// What a module computes: layers, and the values between them.
pub(crate) struct Graph {
    /// The type of each parameter of `forward`.
    pub(crate) inputs: Vec<Input>,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<ValueId>,
}

pub(crate) type ValueId = usize;

pub(crate) struct Input {
    /// The signature, as a type.
    pub(crate) ty: TokenStream,
    pub(crate) value: ValueId,
}

pub(crate) struct Value {
    /// For messages: the name of the layer that gives it, or of the parameter.
    pub(crate) from: String,
}

pub(crate) struct Node {
    pub(crate) callee: Callee,
    /// From the first token to the last.
    pub(crate) span: (Span, Span),
    pub(crate) inputs: Vec<ValueId>,
    /// One value for all it gives, or one for each tensor.
    pub(crate) outputs: Vec<ValueId>,
    /// The pattern that takes its tuple apart, if one does.
    pub(crate) split: Option<(Span, Span)>,
}

pub(crate) enum Callee {
    /// `self.field(..)`.
    Field(Ident),
    /// A layer without parameters, by its type.
    Path(TokenStream),
}

impl Graph {
    pub(crate) fn value(&mut self, from: &str) -> ValueId {
        self.values.push(Value { from: from.to_owned() });
        self.values.len() - 1
    }

    pub(crate) fn node(
        &mut self,
        callee: Callee,
        span: (Span, Span),
        inputs: Vec<ValueId>,
        from: &str,
    ) -> ValueId {
        let out = self.value(from);
        self.nodes.push(Node { callee, span, inputs, outputs: vec![out], split: None });
        out
    }

    pub(crate) fn is_input(&self, value: ValueId) -> bool {
        self.inputs.iter().any(|i| i.value == value)
    }

    pub(crate) fn uses(&self, value: ValueId) -> usize {
        let inside = self.nodes.iter().flat_map(|n| &n.inputs).filter(|v| **v == value).count();
        inside + self.outputs.iter().filter(|v| **v == value).count()
    }
}

/// What `forward` is written in; after the reason why something is not part of it.
const LANGUAGE: &str = "`forward` is made of `let`, `self.field(value, ..)`, layers without parameters (`ReLU(x)`, \
                        `MaxPool2D::<2>(x)`), `+ - * /` of values and numbers, unary `-`, and tuples";

/// What is wrong with an expression that is none of these.
fn reason(expr: &Expr) -> &'static str {
    match expr {
        Expr::If(_) | Expr::Match(_) | Expr::Let(_) => {
            "every sample takes the same way through a model: there is no choice in it"
        }
        Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) => {
            "there are no loops in a model: `Repeat<Block, 6>` is one block after another"
        }
        Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) | Expr::Try(_) => {
            "`forward` has one end, its last expression"
        }
        Expr::Closure(_) => "a closure is no layer",
        Expr::Macro(_) => "a macro is no layer",
        Expr::MethodCall(_) => "a value has no methods: a layer is called with it, as in `ReLU(x)`",
        Expr::Index(_) | Expr::Range(_) => {
            "a value is not indexed: `Slice::<AXIS, FROM, TO>(x)` takes a part of it"
        }
        Expr::Field(_) => "a value has no fields: `let (a, b) = ..;` takes a tuple apart",
        Expr::Lit(_) => "a number is no value: it stands beside one, as in `x * 0.5`",
        Expr::Assign(_) => "a value does not change: bind the new one, as in `let h = h + x;`",
        Expr::Binary(_) => "this operator is not one of `+ - * /`",
        Expr::Unary(_) => "this operator is not `-`",
        Expr::Reference(_) => "values are passed as they are, without `&`",
        Expr::Block(_) | Expr::Unsafe(_) | Expr::Async(_) => "there are no blocks in a model",
        Expr::Array(_) | Expr::Repeat(_) => "there are no arrays of values: tuples are several values",
        Expr::Cast(_) => "a value's type is the device's",
        _ => "this is not part of a model",
    }
}

/// Reads the body of `forward`.
pub(crate) struct Reader<'a> {
    pub(crate) graph: Graph,
    consts: &'a Consts,
    scope: HashMap<String, Vec<ValueId>>,
    /// Names in the order they were bound, to find those that are never used.
    bound: Vec<(Ident, Vec<ValueId>)>,
    /// Those of the `let` that is being read.
    pending: Vec<(Ident, Vec<ValueId>)>,
    pub(crate) errors: Errors,
}

enum Operand {
    Value(ValueId),
    Number { text: String, span: Span },
}

impl<'a> Reader<'a> {
    pub(crate) fn new(consts: &'a Consts, errors: Errors) -> Self {
        let graph = Graph { inputs: Vec::new(), values: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
        Self { graph, consts, scope: HashMap::new(), bound: Vec::new(), pending: Vec::new(), errors }
    }

    pub(crate) fn input(&mut self, pat: &Pat, ty: TokenStream) {
        let name = if let Pat::Ident(id) = pat { id.ident.to_string() } else { String::new() };
        let value = self.graph.value(&name);
        self.graph.inputs.push(Input { ty, value });
        match pat {
            Pat::Ident(id) if id.subpat.is_none() && id.by_ref.is_none() => {
                if let Some(mutability) = &id.mutability {
                    self.errors.at(mutability, "a value does not change: drop `mut`");
                }
                self.bind(&id.ident, vec![value]);
            }
            Pat::Wild(_) => {}
            other => self
                .errors
                .at(other, "a parameter of `forward` is a name; several values are several parameters"),
        }
    }

    pub(crate) fn body(&mut self, block: &Block) {
        let Some((last, lets)) = block.stmts.split_last() else {
            self.errors.at(block, "`forward` must end in the value it gives");
            return;
        };
        for stmt in lets {
            match stmt {
                Stmt::Local(local) => {
                    let Some(init) = &local.init else {
                        self.errors.at(local, "every `let` has a value");
                        continue;
                    };
                    if let Some((_, diverge)) = &init.diverge {
                        self.refuse(diverge);
                    }
                    self.bind_pattern(&local.pat, &init.expr);
                }
                Stmt::Expr(expr, _) => self.statement(expr),
                Stmt::Macro(mac) => {
                    self.errors.at(mac, format!("a macro is no layer\n{LANGUAGE}"));
                }
                Stmt::Item(item) => {
                    self.errors.at(item, format!("items stand outside of `forward`\n{LANGUAGE}"))
                }
            }
        }
        match last {
            Stmt::Expr(expr, None) => {
                let outputs = self.values(expr);
                if outputs.is_empty() {
                    self.errors.at(expr, "`forward` gives at least one value");
                }
                self.outputs(outputs, ends(expr));
            }
            other => self.errors.at(other, "`forward` must end in the value it gives, without a semicolon"),
        }
        self.check_uses();
    }

    /// An expression whose value goes nowhere.
    fn statement(&mut self, expr: &Expr) {
        match expr {
            Expr::Binary(binary) if is_assignment(&binary.op) => {
                let text = "a value does not change: bind the new one, as in `let h = h + x;`";
                self.errors.at(binary, format!("{text}\n{LANGUAGE}"));
            }
            Expr::MethodCall(_) | Expr::Call(_) | Expr::Binary(_) | Expr::Tuple(_) | Expr::Path(_) => {
                if self.values_are_fine(expr) {
                    self.errors.at(expr, "what this gives is never used: drop it");
                }
            }
            other => {
                self.refuse(other);
            }
        }
    }

    /// Reads an expression for its mistakes alone.
    fn values_are_fine(&mut self, expr: &Expr) -> bool {
        let before = std::mem::take(&mut self.errors);
        self.values(expr);
        let own = std::mem::replace(&mut self.errors, before);
        let fine = own.is_empty();
        self.errors.append(own);
        fine
    }

    /// A value that is an input, or given twice, is copied, so that every output has a buffer of its own.
    pub(crate) fn outputs(&mut self, outputs: Vec<ValueId>, span: (Span, Span)) {
        for value in outputs {
            let value = if self.graph.is_input(value) || self.graph.outputs.contains(&value) {
                self.graph.node(Callee::Path(quote!(::nn::__private::Same)), span, vec![value], "")
            } else {
                value
            };
            self.graph.outputs.push(value);
        }
    }

    fn check_uses(&mut self) {
        if !self.errors.is_empty() {
            return;
        }
        for (name, values) in &self.bound {
            let unused = values.iter().all(|v| self.graph.uses(*v) == 0);
            if unused && !name.to_string().starts_with('_') {
                self.errors.at(
                    name,
                    format!("`{name}` is never used: use it, or drop what computes it; or write `_` for it"),
                );
            }
        }
        for node in &self.graph.nodes {
            if node.outputs.iter().all(|v| self.graph.uses(*v) == 0) && self.errors.is_empty() {
                self.errors.push(syn::Error::new(node.span.0, "what this gives is never used: drop it"));
            }
        }
    }

    fn bind(&mut self, name: &Ident, values: Vec<ValueId>) {
        self.bound.push((name.clone(), values.clone()));
        self.scope.insert(name.to_string(), values);
    }

    fn bind_pattern(&mut self, pat: &Pat, expr: &Expr) {
        self.read_pattern(pat, expr);
        // All at once: in `let (a, b) = (b, a);` the right side has the old names.
        for (name, values) in std::mem::take(&mut self.pending) {
            self.bind(&name, values);
        }
    }

    fn read_pattern(&mut self, pat: &Pat, expr: &Expr) {
        match (pat, expr) {
            (_, Expr::Paren(inner)) => self.read_pattern(pat, &inner.expr),
            (_, Expr::Group(inner)) => self.read_pattern(pat, &inner.expr),
            (Pat::Paren(inner), _) => self.read_pattern(&inner.pat, expr),
            (Pat::Ident(id), _) if id.subpat.is_none() && id.by_ref.is_none() => {
                if let Some(mutability) = &id.mutability {
                    self.errors.at(mutability, "a value does not change: drop `mut`");
                }
                let values = self.values(expr);
                self.pending.push((id.ident.clone(), values));
            }
            (Pat::Tuple(pats), Expr::Tuple(exprs)) if pats.elems.len() == exprs.elems.len() => {
                for (pat, expr) in pats.elems.iter().zip(&exprs.elems) {
                    self.read_pattern(pat, expr);
                }
            }
            (Pat::Tuple(tuple), _) => {
                let mut leaves = Vec::new();
                flatten(tuple.elems.iter(), &mut leaves, &mut self.errors);
                let mut values = self.values(expr);
                if values.len() == 1 && leaves.len() > 1 {
                    values = self.split(values[0], leaves.len(), pat, expr);
                }
                if values.len() != leaves.len() {
                    let plural = |n: usize| if n == 1 { "" } else { "s" };
                    let (names, n) = (leaves.len(), values.len());
                    self.errors.at(pat, format!("{names} name{} for {n} value{}", plural(names), plural(n)));
                }
                // A name without a value has one that fits everywhere: it is not a second mistake.
                while values.len() < leaves.len() {
                    values.push(self.graph.value(""));
                }
                let named = leaves.into_iter().zip(values);
                self.pending.extend(named.filter_map(|(name, value)| Some((name?.clone(), vec![value]))));
            }
            (Pat::Wild(_), _) => self.errors.at(pat, "what this gives is never used: drop it"),
            (Pat::Type(typed), _) => {
                self.errors.at(&typed.ty, "a value's shape follows from its layer: write `let h = ..;`");
                self.read_pattern(&typed.pat, expr);
            }
            (other, _) => self.errors.at(other, "`let` binds a name or a tuple of names"),
        }
    }

    /// Names each tensor that a layer gives.
    fn split(&mut self, value: ValueId, n: usize, pat: &Pat, expr: &Expr) -> Vec<ValueId> {
        let used = self.graph.uses(value) > 0;
        let from = self.graph.values[value].from.clone();
        let Some(at) = self.graph.nodes.iter().position(|k| k.outputs == [value]) else {
            if self.errors.is_empty() || self.graph.is_input(value) {
                self.errors.at(expr, "this is one value, not a tuple");
            }
            return vec![value; n];
        };
        if used {
            self.errors.at(expr, "take this tuple apart before it is used as a whole");
            return vec![value; n];
        }
        let parts: Vec<_> = (0..n).map(|_| self.graph.value(&from)).collect();
        self.graph.nodes[at].outputs.clone_from(&parts);
        self.graph.nodes[at].split = Some(ends(pat));
        let named = self.bound.iter_mut().chain(&mut self.pending).map(|(_, v)| v);
        for values in self.scope.values_mut().chain(named) {
            if *values == [value] {
                values.clone_from(&parts);
            }
        }
        parts
    }

    /// A tuple is its values, one after the other.
    fn values(&mut self, expr: &Expr) -> Vec<ValueId> {
        match expr {
            Expr::Tuple(tuple) => tuple.elems.iter().flat_map(|e| self.values(e)).collect(),
            Expr::Paren(inner) => self.values(&inner.expr),
            Expr::Group(inner) => self.values(&inner.expr),
            Expr::Path(path) if path.path.get_ident().is_some() => {
                let name = path.path.get_ident().map(ToString::to_string).unwrap_or_default();
                if let Some(values) = self.scope.get(&name) {
                    return values.clone();
                }
                self.errors.at(path, format!("there is no value `{name}` here"));
                vec![self.graph.value("")]
            }
            Expr::Field(field) if is_self(&field.base) => match &field.member {
                // A raw parameter: a layer that takes nothing.
                syn::Member::Named(name) => vec![self.call_field(name, Vec::new())],
                other @ syn::Member::Unnamed(_) => {
                    self.errors.at(other, "a module's layers have names: `self.fc1(x)`");
                    vec![self.graph.value("")]
                }
            },
            Expr::MethodCall(call) if is_self(&call.receiver) => {
                if let Some(turbofish) = &call.turbofish {
                    self.errors.at(turbofish, "a field's arguments stand in the struct");
                }
                let inputs: Vec<_> = call.args.iter().flat_map(|a| self.values(a)).collect();
                self.check_inputs(expr, &inputs);
                vec![self.call_field(&call.method, inputs)]
            }
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) => {
                    let inputs: Vec<_> = call.args.iter().flat_map(|a| self.values(a)).collect();
                    let ty =
                        syn::Type::Path(syn::TypePath { qself: path.qself.clone(), path: path.path.clone() });
                    let ty = self.consts.layer(&ty, &mut self.errors);
                    if inputs.is_empty() {
                        self.errors.at(expr, "a layer that is called by its type takes a value: `ReLU(x)`");
                    }
                    self.check_inputs(expr, &inputs);
                    let from = path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
                    vec![self.graph.node(Callee::Path(ty), ends(path), inputs, &from)]
                }
                other => {
                    let field = match other {
                        Expr::Paren(inner) => &*inner.expr,
                        other => other,
                    };
                    match field {
                        Expr::Field(field) if matches!(field.member, syn::Member::Unnamed(_)) => {
                            self.errors.at(field, "a module's layers have names: `self.fc1(x)`");
                        }
                        Expr::Field(_) => self
                            .errors
                            .at(other, "a field is called without parentheses around it: `self.fc1(x)`"),
                        _ => {
                            self.refuse(other);
                        }
                    }
                    vec![self.graph.value("")]
                }
            },
            Expr::Binary(binary) => vec![self.binary(binary)],
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                let x = self.operand(&unary.expr);
                match x {
                    Operand::Value(x) => {
                        let layer = quote!(::nn::Scale<::nn::Sci<{ -1 }, 0>>);
                        vec![self.graph.node(Callee::Path(layer), ends(unary), vec![x], "-")]
                    }
                    Operand::Number { .. } => {
                        self.errors.at(
                            unary,
                            "a number stands beside a value, its sign in the operator: `x - 0.5`, `x * 0.5`",
                        );
                        vec![self.graph.value("")]
                    }
                }
            }
            other => self.refuse(other),
        }
    }

    fn call_field(&mut self, name: &Ident, inputs: Vec<ValueId>) -> ValueId {
        let from = name.to_string();
        self.graph.node(Callee::Field(name.clone()), (name.span(), name.span()), inputs, &from)
    }

    fn check_inputs(&mut self, call: &Expr, inputs: &[ValueId]) {
        if inputs.len() > 6 {
            self.errors.at(call, "a layer takes at most 6 tensors");
        }
    }

    fn refuse(&mut self, expr: &Expr) -> Vec<ValueId> {
        self.errors.at(expr, format!("{}\n{LANGUAGE}", reason(expr)));
        vec![self.graph.value("")]
    }

    fn operand(&mut self, expr: &Expr) -> Operand {
        match expr {
            Expr::Lit(ExprLit { lit: Lit::Float(f), .. }) => {
                Operand::Number { text: f.base10_digits().to_owned(), span: f.span() }
            }
            Expr::Lit(ExprLit { lit: Lit::Int(i), .. }) => {
                Operand::Number { text: i.base10_digits().to_owned(), span: i.span() }
            }
            Expr::Paren(inner) => self.operand(&inner.expr),
            Expr::Group(inner) => self.operand(&inner.expr),
            other => match self.values(other).as_slice() {
                [one] => Operand::Value(*one),
                _ => {
                    self.errors.at(other, "`+ - * /` take one value on each side, not a tuple");
                    Operand::Value(self.graph.value(""))
                }
            },
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary) -> ValueId {
        let (left, right) = (self.operand(&binary.left), self.operand(&binary.right));
        if !matches!(binary.op, BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_)) {
            self.errors.at(binary.op, format!("this operator is not one of `+ - * /`\n{LANGUAGE}"));
            return self.graph.value("");
        }
        let span = ends(binary.op);
        let sign = binary.op.to_token_stream().to_string();
        let nn = quote!(::nn);
        let mut number = |text: &str, span| sci(text, span, &mut self.errors);
        let (layer, inputs) = match (&binary.op, left, right) {
            (op, Operand::Value(a), Operand::Value(b)) => {
                let layer = match op {
                    BinOp::Add(_) => quote!(#nn::Add),
                    BinOp::Sub(_) => quote!(#nn::Sub),
                    BinOp::Mul(_) => quote!(#nn::Mul),
                    _ => quote!(#nn::Div),
                };
                (layer, vec![a, b])
            }
            (BinOp::Add(_), Operand::Value(a), Operand::Number { text, span })
            | (BinOp::Add(_), Operand::Number { text, span }, Operand::Value(a)) => {
                let k = number(&text, span);
                (quote!(#nn::Shift<#k>), vec![a])
            }
            (BinOp::Mul(_), Operand::Value(a), Operand::Number { text, span })
            | (BinOp::Mul(_), Operand::Number { text, span }, Operand::Value(a)) => {
                let k = number(&text, span);
                (quote!(#nn::Scale<#k>), vec![a])
            }
            (BinOp::Sub(_), Operand::Value(a), Operand::Number { text, span }) => {
                let k = number(&text, span);
                (quote!(#nn::Shift<<#k as #nn::Real>::Negated>), vec![a])
            }
            (BinOp::Sub(_), Operand::Number { text, span }, Operand::Value(a)) => {
                let k = number(&text, span);
                (quote!(#nn::MinusFrom<#k>), vec![a])
            }
            (BinOp::Div(_), Operand::Value(a), Operand::Number { text, span }) => {
                let k = number(&text, span);
                (quote!(#nn::DivideBy<#k>), vec![a])
            }
            (BinOp::Div(_), Operand::Number { text, span }, Operand::Value(a)) => {
                let k = number(&text, span);
                (quote!(#nn::Reciprocal<#k>), vec![a])
            }
            _ => {
                self.errors.at(binary, "both sides are numbers: write the result");
                return self.graph.value("");
            }
        };
        self.graph.node(Callee::Path(layer), span, inputs, &sign)
    }
}

fn is_assignment(op: &BinOp) -> bool {
    let op = op.to_token_stream().to_string();
    op.len() > 1 && op.ends_with('=') && !["==", "<=", ">=", "!="].contains(&op.as_str())
}

fn is_self(expr: &Expr) -> bool {
    matches!(expr, Expr::Path(path) if path.path.is_ident("self"))
}

fn flatten<'p>(
    pats: impl Iterator<Item = &'p Pat>,
    leaves: &mut Vec<Option<&'p Ident>>,
    errors: &mut Errors,
) {
    for pat in pats {
        match pat {
            Pat::Ident(id) if id.subpat.is_none() && id.by_ref.is_none() => leaves.push(Some(&id.ident)),
            Pat::Wild(_) => leaves.push(None),
            Pat::Paren(inner) => flatten(std::iter::once(&*inner.pat), leaves, errors),
            Pat::Tuple(inner) => flatten(inner.elems.iter(), leaves, errors),
            other => errors.at(other, "`let` binds a name or a tuple of names"),
        }
    }
}
