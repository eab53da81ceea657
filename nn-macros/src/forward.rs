use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{FnArg, Ident, ImplItem, ItemImpl, ReturnType, Type};

use crate::errors::{Errors, check, ends, no_args};
use crate::generics::Consts;
use crate::graph::{Callee, Graph, Node, Reader, ValueId};
use crate::plan::{self, Write};
use crate::structure::{fields_trait, struct_name};

pub(crate) fn expand(args: TokenStream, item: ItemImpl) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    let consts = Consts::new(&item.generics, &mut errors);
    let Some(name) = self_name(&item, &consts, &mut errors) else {
        return errors.into_tokens();
    };
    let mut found = None;
    for part in &item.items {
        match part {
            ImplItem::Fn(f) if f.sig.ident == "forward" && found.is_none() => found = Some(f),
            other => errors.at(other, "this impl holds `fn forward` alone; other methods go in an impl without `#[module]`"),
        }
    }
    let Some(f) = found else {
        errors.at(&item.self_ty, "this impl needs `fn forward(&self, x: T![..]) -> T![..]`");
        let fallback = inert(&name, &consts);
        let errors = errors.into_tokens();
        return quote!(#fallback #errors);
    };
    if !f.sig.generics.params.is_empty() {
        errors.at(&f.sig.generics, "`forward` has no parameters of its own: those of the impl are enough");
    }
    for attr in f.attrs.iter().filter(|a| !a.path().is_ident("doc")) {
        errors.at(attr, "`forward` takes no attributes but documentation");
    }
    let mut reader = Reader::new(&consts, errors);
    let mut params = f.sig.inputs.iter();
    match params.next() {
        Some(FnArg::Receiver(r)) if r.reference.is_some() && r.mutability.is_none() => {}
        other => {
            let span = other.map_or_else(|| f.sig.ident.span(), Spanned::span);
            reader.errors.push(syn::Error::new(span, "`forward` takes `&self` first"));
        }
    }
    for param in params {
        if let FnArg::Typed(param) = param {
            let ty = consts.rewrite(&param.ty, &mut reader.errors);
            reader.input(&param.pat, ty);
        }
    }
    reader.body(&f.block);
    let (gives, gives_span) = match &f.sig.output {
        ReturnType::Type(_, ty) => (consts.rewrite(ty, &mut reader.errors), ends(ty)),
        ReturnType::Default => {
            reader.errors.at(&f.sig.ident, "`forward` says what it gives: `-> T![10]`");
            (quote!(()), ends(&f.sig.ident))
        }
    };
    if !reader.errors.is_empty() {
        let fallback = inert(&name, &consts);
        let errors = reader.errors.into_tokens();
        return quote!(#fallback #errors);
    }
    Forward { name: &name, consts: &consts, graph: &reader.graph, gives, gives_span, all_used: true }.expand()
}

/// `Block` of `impl<const D: usize> Block<D>`.
fn self_name(item: &ItemImpl, consts: &Consts, errors: &mut Errors) -> Option<Ident> {
    if let Some((_, path, _)) = &item.trait_ {
        errors.at(path, "`#[module]` goes on an impl without a trait");
        return None;
    }
    let Type::Path(ty) = &*item.self_ty else {
        errors.at(&item.self_ty, "`#[module]` goes on the impl of a struct declared with `#[module]`");
        return None;
    };
    let last = ty.path.segments.last()?;
    let given = match &last.arguments {
        syn::PathArguments::AngleBracketed(args) => {
            args.args.iter().map(|a| quote!(#a).to_string()).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    let own: Vec<_> = consts.names.iter().map(Ident::to_string).collect();
    if given != own {
        let text = "write the impl for all parameters, in the struct's order: `impl<const D: usize> Block<D>`";
        errors.at(&item.self_ty, text);
        return None;
    }
    Some(last.ident.clone())
}

/// What a module is when its `forward` could not be read: something that fits everywhere, so that one
/// mistake gives one message.
fn inert(name: &Ident, consts: &Consts) -> TokenStream {
    let own = struct_name(name, consts);
    let (params, args, bounds) = (consts.params(), consts.args(), consts.bounds());
    quote! {
        const _: () = {
            use ::nn::__private as nn;
            impl<#bounds __nn_X: nn::Signature> nn::Layer<__nn_X> for #own #args {
                const RULE: nn::Rule = nn::Rule::ok(nn::Sig::POISON);
            }
            impl<#bounds __nn_D: nn::Device, __nn_X: nn::Signature> nn::Module<__nn_D, __nn_X> for #own #args {
                fn forward(_: &mut nn::Ctx<'_, __nn_D>, _: nn::Forward<'_, __nn_D>) {}
                fn vjp(_: &mut nn::Ctx<'_, __nn_D>, _: nn::Vjp<'_, __nn_D>) {}
            }
            impl #params nn::Declared for #own #args {
                type In = ();
                type Out = ();
            }
        };
    }
}

/// A module's arithmetic, from its graph.
pub(crate) struct Forward<'a> {
    pub(crate) name: &'a Ident,
    pub(crate) consts: &'a Consts,
    pub(crate) graph: &'a Graph,
    /// The declared output, as a type.
    pub(crate) gives: TokenStream,
    pub(crate) gives_span: (Span, Span),
    /// Whether a field that the graph leaves out is a mistake.
    pub(crate) all_used: bool,
}

impl Forward<'_> {
    pub(crate) fn expand(&self) -> TokenStream {
        let Self { name, consts, graph, gives, .. } = self;
        let own = struct_name(name, consts);
        let (params, args, bounds) = (consts.params(), consts.args(), consts.bounds());
        let dims = &consts.names;
        let self_ty = quote!(#own #args);

        let takes: Vec<_> = graph.inputs.iter().map(|i| &i.ty).collect();
        let takes = if takes.len() == 1 { quote!(#(#takes)*) } else { quote!((#(#takes,)*)) };
        let markers = self.markers(&self_ty);
        let layers: Vec<_> = graph.nodes.iter().map(|n| self.layer(n, &self_ty)).collect();
        let xs: Vec<_> = graph.nodes.iter().map(|n| self.signature(&n.inputs)).collect();
        let faults = graph.nodes.iter().zip(layers.iter().zip(&xs)).map(|(n, (l, x))| {
            let (field, from) = self.names(n);
            quote!(nn::within(<#l as nn::Layer<#x>>::RULE.fault, #field, #from))
        });
        let splits: Vec<_> = graph.nodes.iter().zip(layers.iter().zip(&xs)).filter(|(n, _)| n.split).map(|(n, (l, x))| {
            let count = n.outputs.len();
            let (field, _) = self.names(n);
            quote!(nn::within(nn::check_split(&<#l as nn::Layer<#x>>::RULE.out, #count), #field, ""))
        }).collect();
        let found: Vec<_> = graph.outputs.iter().map(|v| self.marker(*v)).collect();
        let found = quote!(<(#(#found,)*) as nn::Signature>::SIG);

        let (plan, forward, vjp) = (self.plan(&self_ty, &layers, &xs), self.forward(&layers, &xs), self.vjp(&layers, &xs));
        let keeps_x = self.any_kept(graph.inputs.iter().map(|i| i.value));
        let keeps_y = self.any_kept(graph.outputs.iter().copied());
        let describe = graph.nodes.iter().zip(layers.iter().zip(&xs)).map(|(n, (l, x))| {
            let shown = self.key(n);
            quote!(out.within(#shown, |out| <#l as nn::Module<__nn_D, #x>>::describe(out));)
        });
        let wheres = layers.iter().zip(&xs).map(|(l, x)| quote!(#l: nn::Module<__nn_D, #x>,));
        let checks = self.checks(&self_ty, &layers, &xs, &splits);
        let plan_ty = quote!(__nn_Plan #args);
        let gives_poison_free = quote!(<#gives as nn::Signature>::SIG);

        quote! {
            #[allow(non_camel_case_types, reason = "the names must not meet the user's")]
            const _: () = {
                use ::nn::__private as nn;
                /// Where the parts of a module and its buffers are.
                struct __nn_Plan #args (::core::marker::PhantomData<(#(#dims,)*)>);
                #markers
                #plan
                impl<#bounds __nn_X: nn::Signature> nn::Layer<__nn_X> for #self_ty {
                    const RULE: nn::Rule = nn::module_rule(
                        &<Self as nn::Params>::LABEL,
                        &__nn_X::SIG,
                        &<#takes as nn::Signature>::SIG,
                        &#gives_poison_free,
                        &#found,
                        &[#(#faults,)* #(#splits,)*],
                    );
                    const KEEPS_X: bool = #keeps_x;
                    const KEEPS_Y: bool = #keeps_y;
                    const SAVED: nn::Size = <#plan_ty>::SAVED;
                    const SCRATCH: nn::Size = <#plan_ty>::SCRATCH;
                    const VJP_SCRATCH: nn::Size = <#plan_ty>::VJP_SCRATCH;
                    const MACS: usize = 0 #(+ <#layers as nn::Layer<#xs>>::MACS)*;
                    const PLACES: u32 = 0 #(+ <#layers as nn::Layer<#xs>>::PLACES)*;
                }
                impl<#bounds __nn_D: nn::Device, __nn_X: nn::Signature> nn::Module<__nn_D, __nn_X> for #self_ty
                where
                    #(#wheres)*
                {
                    fn forward(cx: &mut nn::Ctx<'_, __nn_D>, call: nn::Forward<'_, __nn_D>) { #forward }
                    fn vjp(cx: &mut nn::Ctx<'_, __nn_D>, call: nn::Vjp<'_, __nn_D>) { #vjp }
                    fn describe(out: &mut nn::Describe) { #(#describe)* }
                }
                impl #params nn::Declared for #self_ty {
                    type In = #takes;
                    type Out = #gives;
                }
                #checks
            };
        }
    }

    fn marker(&self, value: ValueId) -> TokenStream {
        let (name, args) = (format_ident!("__nn_V{value}"), self.consts.args());
        quote!(#name #args)
    }

    /// A type for each value, whose signature is what the layer before it gives: short names, however long
    /// the chain.
    fn markers(&self, self_ty: &TokenStream) -> TokenStream {
        let (params, args, dims) = (self.consts.params(), self.consts.args(), &self.consts.names);
        let mut tokens = TokenStream::new();
        let mut marker = |value: ValueId, sig: TokenStream| {
            let name = format_ident!("__nn_V{value}");
            tokens.extend(quote! {
                struct #name #args (::core::marker::PhantomData<(#(#dims,)*)>);
                impl #params nn::Signature for #name #args {
                    const SIG: nn::Sig = #sig;
                }
            });
        };
        for input in &self.graph.inputs {
            let ty = &input.ty;
            marker(input.value, quote!(<#ty as nn::Signature>::SIG));
        }
        for node in &self.graph.nodes {
            let (layer, x) = (self.layer(node, self_ty), self.signature(&node.inputs));
            for (i, value) in node.outputs.iter().enumerate() {
                let nth = node.split.then(|| quote!(.nth(#i)));
                marker(*value, quote!(<#layer as nn::Layer<#x>>::RULE.out #nth));
            }
        }
        tokens
    }

    fn signature(&self, values: &[ValueId]) -> TokenStream {
        let markers: Vec<_> = values.iter().map(|v| self.marker(*v)).collect();
        if markers.len() == 1 { quote!(#(#markers)*) } else { quote!((#(#markers,)*)) }
    }

    fn layer(&self, node: &Node, self_ty: &TokenStream) -> TokenStream {
        match &node.callee {
            Callee::Field(name) => {
                let fields = fields_trait(self.name);
                quote!(<#self_ty as #fields>::#name)
            }
            Callee::Path(ty) => ty.clone(),
        }
    }

    /// The field of a node, and the layers that its input comes from.
    fn names(&self, node: &Node) -> (String, String) {
        let mut from: Vec<_> = node.inputs.iter().map(|v| self.graph.values[*v].from.as_str()).collect();
        from.retain(|name| !name.is_empty());
        from.dedup();
        (self.key(node), from.join("` and `"))
    }

    /// The name a node has in paths: a field's, without the underscore of an unnamed one.
    fn key(&self, node: &Node) -> String {
        match &node.callee {
            Callee::Field(name) => {
                let name = name.to_string();
                match name.strip_prefix('_') {
                    Some(index) if index.parse::<usize>().is_ok() => index.to_owned(),
                    _ => name,
                }
            }
            Callee::Path(_) => String::new(),
        }
    }

    fn keep(&self, value: ValueId) -> TokenStream {
        let (name, args) = (format_ident!("KEEP_{value}"), self.consts.args());
        quote!(<__nn_Plan #args>::#name)
    }

    fn any_kept(&self, values: impl Iterator<Item = ValueId>) -> TokenStream {
        let kept = values.map(|v| self.keep(v));
        quote!(false #(|| #kept)*)
    }

    /// Where each layer is, which values are kept, and how large each slot is.
    fn plan(&self, self_ty: &TokenStream, layers: &[TokenStream], xs: &[TokenStream]) -> TokenStream {
        let (params, args) = (self.consts.params(), self.consts.args());
        let graph = self.graph;
        let steps = graph.nodes.iter().enumerate().map(|(k, node)| {
            let name = format_ident!("STEP_{k}");
            let place = match k.checked_sub(1) {
                None => quote!(0),
                Some(before) => {
                    let (step, layer, x) = (format_ident!("STEP_{before}"), &layers[before], &xs[before]);
                    quote!(Self::#step.place + <#layer as nn::Layer<#x>>::PLACES)
                }
            };
            let field = match &node.callee {
                Callee::Field(name) => {
                    let fields = fields_trait(self.name);
                    let name = name.to_string();
                    quote! {
                        nn::field(<#self_ty as nn::Params>::TREE, <#self_ty as #fields>::__NN_NAMES, #name)
                    }
                }
                Callee::Path(_) => quote!(nn::Field::NONE),
            };
            quote! {
                const #name: nn::Step = nn::Step { field: #field, place: #place };
            }
        });
        let keeps = (0..graph.values.len()).map(|value| {
            let name = format_ident!("KEEP_{value}");
            let reads = graph.nodes.iter().zip(layers.iter().zip(xs)).filter_map(|(n, (l, x))| {
                n.inputs.contains(&value).then(|| quote!(|| <#l as nn::Layer<#x>>::KEEPS_X))
            });
            let given = graph.nodes.iter().zip(layers.iter().zip(xs)).filter_map(|(n, (l, x))| {
                n.outputs.contains(&value).then(|| quote!(|| <#l as nn::Layer<#x>>::KEEPS_Y))
            });
            quote!(const #name: bool = false #(#reads)* #(#given)*;)
        });
        let slots = |slots: &plan::Slots| {
            let sizes = slots.held.iter().map(|values| {
                let markers = values.iter().map(|v| self.marker(*v));
                quote!(nn::largest(&[#(<#markers as nn::Signature>::SIG.size()),*]))
            });
            let n = slots.held.len();
            quote!([nn::Size; #n] = [#(#sizes),*])
        };
        let forward = slots(&plan::forward(graph));
        let backward = slots(&plan::backward(graph).slots);
        let kept = self.between().map(|v| {
            let (keep, marker) = (format_ident!("KEEP_{v}"), self.marker(v));
            quote!(<#marker as nn::Signature>::SIG.size().when(Self::#keep))
        });
        quote! {
            impl #params __nn_Plan #args {
                #(#steps)*
                #(#keeps)*
                const SLOTS: #forward;
                const VJP_SLOTS: #backward;
                const SAVED: nn::Size = nn::sum(&[
                    #(#kept,)*
                    #(<#layers as nn::Layer<#xs>>::SAVED,)*
                ]);
                const SCRATCH: nn::Size = nn::sum(&Self::SLOTS)
                    .plus(nn::largest(&[#(<#layers as nn::Layer<#xs>>::SCRATCH,)*]));
                const VJP_SCRATCH: nn::Size = nn::sum(&Self::VJP_SLOTS)
                    .plus(nn::largest(&[#(<#layers as nn::Layer<#xs>>::VJP_SCRATCH,)*]));
            }
        }
    }

    /// Values that are neither input nor output.
    fn between(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.graph.nodes.iter().flat_map(|n| &n.outputs).copied().filter(|v| !self.graph.outputs.contains(v))
    }

    /// Splits `whole` into one variable a value.
    fn parts(&self, whole: &Ident, prefix: &str, values: &[ValueId]) -> TokenStream {
        if let [one] = values {
            let name = format_ident!("{prefix}{one}");
            return quote!(let #name = #whole;);
        }
        let splits = values.iter().map(|v| {
            let (name, marker) = (format_ident!("{prefix}{v}"), self.marker(*v));
            quote!(let (#name, #whole) = #whole.split(<#marker as nn::Signature>::SIG.len());)
        });
        quote!(#(#splits)* let _ = #whole;)
    }

    fn joined(&self, values: &[ValueId], one: impl Fn(ValueId) -> TokenStream, none: TokenStream) -> TokenStream {
        let Some((first, rest)) = values.split_first() else { return none };
        let (first, rest) = (one(*first), rest.iter().map(|v| one(*v)));
        quote!(#first #(.join(#rest))*)
    }

    fn forward(&self, layers: &[TokenStream], xs: &[TokenStream]) -> TokenStream {
        let graph = self.graph;
        let plan_ty = { let args = self.consts.args(); quote!(<__nn_Plan #args>) };
        let slots = plan::forward(graph);
        let slot_names: Vec<_> = (0..slots.held.len()).map(|i| format_ident!("slot{i}")).collect();
        let slot_index = 0..slots.held.len();
        let inputs: Vec<_> = graph.inputs.iter().map(|i| i.value).collect();
        let (x, y) = (format_ident!("x"), format_ident!("y"));
        let split_x = self.parts(&x, "v", &inputs);
        let split_y = self.parts(&y, "y", &graph.outputs);
        let steps = graph.nodes.iter().enumerate().map(|(k, node)| {
            let (layer, sig, step) = (&layers[k], &xs[k], format_ident!("STEP_{k}"));
            let buffers = node.outputs.iter().filter(|v| !graph.outputs.contains(v)).map(|v| {
                let (name, marker, keep) = (format_ident!("y{v}"), self.marker(*v), self.keep(*v));
                let slot = format_ident!("slot{}", slots.of[v]);
                quote!(let mut #name = nn::value::<__nn_D, #marker>(cx, #keep, &mut saved, &mut #slot);)
            });
            let given = node.outputs.iter().filter(|v| graph.outputs.contains(v)).map(|v| {
                let name = format_ident!("y{v}");
                quote!(let mut #name = #name;)
            });
            let read = |v: ValueId| { let name = format_ident!("v{v}"); quote!(#name.shorten()) };
            let write = |v: ValueId| { let name = format_ident!("y{v}"); quote!(#name.reborrow()) };
            let input = self.joined(&node.inputs, read, quote!(nn::Tensors::EMPTY));
            let output = self.joined(&node.outputs, write, quote!(nn::TensorsMut::empty()));
            let frozen = node.outputs.iter().filter(|v| graph.nodes.iter().any(|n| n.inputs.contains(v))).map(|v| {
                let (y, v) = (format_ident!("y{v}"), format_ident!("v{v}"));
                quote!(let #v = #y.freeze();)
            });
            quote_spanned! {node.span.0.resolved_at(Span::call_site())=>
                #(#buffers)* #(#given)*
                nn::forward::<__nn_D, #layer, #sig>(
                    cx, #plan_ty::#step, params, &mut state, #input, #output, &mut saved, &mut scratch,
                );
                #(#frozen)*
            }
        });
        quote! {
            let nn::Forward { params, mut state, x, y, mut saved, mut scratch } = call;
            #split_x
            #split_y
            #(let mut #slot_names = scratch.part(cx, #plan_ty::SLOTS[#slot_index]);)*
            #(#steps)*
        }
    }

    fn vjp(&self, layers: &[TokenStream], xs: &[TokenStream]) -> TokenStream {
        let graph = self.graph;
        let plan_ty = { let args = self.consts.args(); quote!(<__nn_Plan #args>) };
        let back = plan::backward(graph);
        let slot_names: Vec<_> = (0..back.slots.held.len()).map(|i| format_ident!("slot{i}")).collect();
        let slot_index = 0..back.slots.held.len();
        let inputs: Vec<_> = graph.inputs.iter().map(|i| i.value).collect();
        let [x, y, dx, dy] = ["x", "y", "dx", "dy"].map(|n| format_ident!("{n}"));
        let split_x = self.parts(&x, "v", &inputs);
        let split_y = self.parts(&y, "v", &graph.outputs);
        let split_dx = self.parts(&dx, "g", &inputs);
        let split_dy = self.parts(&dy, "dy", &graph.outputs);
        let mutable = inputs.iter().map(|v| { let g = format_ident!("g{v}"); quote!(let mut #g = #g;) });
        let unread = inputs.iter().filter(|v| !graph.nodes.iter().any(|n| n.inputs.contains(v))).map(|v| {
            let g = format_ident!("g{v}");
            quote!(#g.zero(cx);)
        });

        let saved = graph.nodes.iter().enumerate().map(|(k, node)| {
            let (layer, sig, own) = (&layers[k], &xs[k], format_ident!("saved{k}"));
            let values = node.outputs.iter().filter(|v| !graph.outputs.contains(v)).map(|v| {
                let (name, marker, keep) = (format_ident!("v{v}"), self.marker(*v), self.keep(*v));
                quote!(let #name = nn::kept::<__nn_D, #marker>(cx, #keep, &mut saved);)
            });
            quote! {
                #(#values)*
                let #own = saved.part(cx, <#layer as nn::Layer<#sig>>::SAVED);
            }
        });
        let copied = back.copied.iter().map(|v| {
            let (g, dy, marker) = (format_ident!("g{v}"), format_ident!("dy{v}"), self.marker(*v));
            let slot = format_ident!("slot{}", back.slots.of[v]);
            quote! {
                let mut #g = nn::gradient::<__nn_D, #marker>(cx, &mut #slot);
                #g.copy(cx, #dy);
            }
        });
        let steps = graph.nodes.iter().enumerate().rev().map(|(k, node)| {
            let (layer, sig) = (&layers[k], &xs[k]);
            let (step, own) = (format_ident!("STEP_{k}"), format_ident!("saved{k}"));
            let zeroed = node.outputs.iter().filter(|v| back.zeroed.contains(v)).map(|v| {
                let (g, marker) = (format_ident!("g{v}"), self.marker(*v));
                let slot = format_ident!("slot{}", back.slots.of[v]);
                quote! {
                    let mut #g = nn::gradient::<__nn_D, #marker>(cx, &mut #slot);
                    #g.zero(cx);
                }
            });
            let mut buffers = TokenStream::new();
            let mut sums = TokenStream::new();
            let mut gradients = Vec::new();
            for (i, (value, write)) in node.inputs.iter().zip(&back.writes[k]).enumerate() {
                let (g, marker) = (format_ident!("g{value}"), self.marker(*value));
                match write {
                    Write::First => {
                        if let Some(slot) = back.slots.of.get(value) {
                            let slot = format_ident!("slot{slot}");
                            buffers.extend(quote!(let mut #g = nn::gradient::<__nn_D, #marker>(cx, &mut #slot);));
                        }
                        gradients.push(quote!(#g.reborrow()));
                    }
                    Write::Add(slot) => {
                        let (t, slot) = (format_ident!("t{i}"), format_ident!("slot{slot}"));
                        buffers.extend(quote!(let mut #t = nn::gradient::<__nn_D, #marker>(cx, &mut #slot);));
                        sums.extend(quote!(#g.add(cx, #t.read()); drop(#t);));
                        gradients.push(quote!(#t.reborrow()));
                    }
                }
            }
            let dx = match gradients.split_first() {
                Some((first, rest)) => quote!(#first #(.join(#rest))*),
                None => quote!(nn::TensorsMut::empty()),
            };
            let read = |v: ValueId| { let name = format_ident!("v{v}"); quote!(#name.shorten()) };
            let (x, y) = (
                self.joined(&node.inputs, read, quote!(nn::Tensors::EMPTY)),
                self.joined(&node.outputs, read, quote!(nn::Tensors::EMPTY)),
            );
            let incoming = |v: ValueId| {
                if graph.outputs.contains(&v) && !back.copied.contains(&v) {
                    let dy = format_ident!("dy{v}");
                    quote!(#dy.shorten())
                } else {
                    let g = format_ident!("g{v}");
                    quote!(#g.read())
                }
            };
            let dy = self.joined(&node.outputs, incoming, quote!(nn::Tensors::EMPTY));
            // Ends the loan of the slot, which a later gradient may take.
            let done = node.outputs.iter().filter(|v| back.slots.of.contains_key(v)).map(|v| {
                let g = format_ident!("g{v}");
                quote!(drop(#g);)
            });
            quote_spanned! {node.span.0.resolved_at(Span::call_site())=>
                #(#zeroed)*
                #buffers
                nn::vjp::<__nn_D, #layer, #sig>(
                    cx, #plan_ty::#step, params, state, #x, #y, #own, #dy, #dx, &mut dparams, &mut scratch,
                );
                #sums
                #(#done)*
            }
        });
        quote! {
            let nn::Vjp { params, state, x, y, mut saved, dy, dx, mut dparams, mut scratch } = call;
            #split_x
            #split_y
            #split_dy
            #split_dx
            #(#mutable)*
            #(#saved)*
            #(let mut #slot_names = scratch.part(cx, #plan_ty::VJP_SLOTS[#slot_index]);)*
            #(#unread)*
            #(#copied)*
            #(#steps)*
        }
    }

    /// What stops the compiler, each at the user's own token. A generic module is checked where it is made
    /// concrete.
    fn checks(
        &self,
        self_ty: &TokenStream,
        layers: &[TokenStream],
        xs: &[TokenStream],
        splits: &[TokenStream],
    ) -> TokenStream {
        let graph = self.graph;
        let used = self.all_used.then(|| {
            let used = graph.nodes.iter().filter_map(|n| match &n.callee {
                Callee::Field(name) => Some(name.to_string()),
                Callee::Path(_) => None,
            });
            let (fields, label) = (fields_trait(self.name), self.name.to_string());
            // The names don't depend on the parameters: any numbers will do.
            let own = struct_name(self.name, self.consts);
            let any: Vec<_> = self.consts.names.iter().map(|_| quote!(nn::C<1>)).collect();
            let any = (!any.is_empty()).then(|| quote!(<#(#any),*>));
            let args = quote!(&nn::check_used(#label, <#own #any as #fields>::__NN_NAMES, &[#(#used),*]));
            check(ends(self.name), "accept", args)
        });
        if !self.consts.is_empty() {
            return quote!(#used);
        }
        let each = graph.nodes.iter().zip(layers.iter().zip(xs)).map(|(node, (layer, x))| {
            let (_, from) = self.names(node);
            let parameters = match &node.callee {
                Callee::Path(_) => Some(check(node.span, "accept", quote!(&nn::check_free::<#layer>()))),
                Callee::Field(_) => None,
            };
            let fault = quote!(&<#layer as nn::Layer<#x>>::RULE.fault, #from);
            let fault = check(node.span, "accept_from", fault);
            quote!(#fault #parameters)
        });
        let split_spans = graph.nodes.iter().filter(|n| n.split).map(|n| n.span);
        let split = splits.iter().zip(split_spans).map(|(fault, span)| check(span, "accept", quote!(&#fault)));
        let found: Vec<_> = graph.outputs.iter().map(|v| self.marker(*v)).collect();
        let gives = &self.gives;
        let declared = quote! {
            &nn::check_declared(
                &<#self_ty as nn::Params>::LABEL,
                &<#gives as nn::Signature>::SIG,
                &<(#(#found,)*) as nn::Signature>::SIG,
            )
        };
        let declared = check(self.gives_span, "accept", declared);
        quote!(#(#each)* #(#split)* #declared #used)
    }
}
