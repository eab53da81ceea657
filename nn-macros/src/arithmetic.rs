use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote};

use crate::errors::{check, ends};
use crate::generics::Consts;
use crate::graph::{Callee, Graph, Node, ValueId};
use crate::plan;
use crate::structure::Names;

/// What a module computes, as code: from its graph, the types and constants that the compiler decides by, and
/// the two passes.
pub(crate) struct Arithmetic<'a> {
    pub(crate) names: &'a Names,
    pub(crate) consts: &'a Consts,
    pub(crate) graph: &'a Graph,
    /// The declared output, as a type.
    pub(crate) gives: TokenStream,
    pub(crate) gives_span: (Span, Span),
    /// Whether a field that the graph leaves out is a mistake.
    pub(crate) all_used: bool,
}

impl Arithmetic<'_> {
    pub(crate) fn expand(&self) -> TokenStream {
        let Self { consts, graph, gives, names: Names { own, .. }, .. } = self;
        let (params, args, bounds) = (consts.params(), consts.args(), consts.bounds());

        let takes: Vec<_> = graph.inputs.iter().map(|i| &i.ty).collect();
        let takes = one_or_tuple(&takes);
        let (values, layers) = (self.values(), self.layers());
        let (plan, held) = (self.plan(), consts.held());
        let faults = graph.nodes.iter().enumerate().map(|(k, node)| {
            let (rule, field, from) = (self.of_layer(k, "RULE"), self.key(node), self.from(node));
            quote!(__nn::within(#rule.fault, #field, #from))
        });
        let splits = self.splits().map(|(node, fault)| {
            let field = self.key(node);
            quote!(__nn::within(#fault, #field, ""))
        });
        // A generic module's own tokens are checked where it is made concrete, by its rule.
        let own_faults = (!consts.is_empty()).then(|| {
            let free = graph.nodes.iter().filter_map(|node| match &node.callee {
                Callee::Path(ty) => {
                    let part = quote!(__nn::Part::<#ty>);
                    Some(quote!(__nn::check_free(&#part::LABEL, #part::TREE)))
                }
                Callee::Field(_) => None,
            });
            quote!(__nn::Part::<#own #args>::TREE.check(), #(#free,)*)
        });
        // What is wrong within a module without parameters is said where it is declared, and not once more wherever it
        // is used.
        let generic = !consts.is_empty();
        let (faults, splits) = (faults.filter(|_| generic), splits.filter(|_| generic));
        let found = if generic { self.found() } else { quote!(__nn::SigOf::<#gives>::SIG) };
        let outputs_from = self.outputs_from();
        let of_plan = |name: &str| self.of_plan(&Ident::new(name, Span::call_site()));
        let [label, saved, scratch, vjp_scratch] = ["LABEL", "SAVED", "SCRATCH", "VJP_SCRATCH"].map(of_plan);
        let layers_of = |constant| (0..graph.nodes.len()).map(move |k| self.of_layer(k, constant));
        let (cache, causal) = (layers_of("CACHE"), layers_of("CAUSAL"));
        let keeps_x = self.any_kept(graph.inputs.iter().map(|i| i.value));
        let keeps_y = self.any_kept(graph.outputs.iter().copied());
        let macs = self.total("MACS");
        let places = self.total("PLACES");

        let (forward, vjp) = (self.forward(), self.vjp());
        let aliases: Vec<_> = (0..graph.nodes.len()).map(|k| self.layer(k)).collect();
        let describe = graph.nodes.iter().zip(&aliases).map(|(node, layer)| match &node.callee {
            Callee::Field(name) => {
                let (tree, fields, name) = (of_plan("TREE"), of_plan("FIELDS"), name.to_string());
                quote!(__nn::describe_part::<__nn_D, #layer>(out, __nn::child(#tree, #fields, #name));)
            }
            Callee::Path(_) => quote!(__nn::describe::<__nn_D, #layer>(out);),
        });
        let uses = self.all_used.then(|| {
            let used = graph.nodes.iter().filter_map(|n| match &n.callee {
                Callee::Field(name) => Some(name.to_string()),
                Callee::Path(_) => None,
            });
            quote! {
                impl #params __nn::Uses for #own #args {
                    const FIELDS: ::core::option::Option<&'static [&'static str]> =
                        ::core::option::Option::Some(&[#(#used),*]);
                }
            }
        });
        let checks = self.checks();
        let macros = consts.macros();

        quote! {
            #[allow(non_camel_case_types, reason = "`__nn_` keeps these names from meeting the user's")]
            const _: () = {
                use ::nn::__private as __nn;
                #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
                use __nn::{NoLayer as _, NoPart as _, NoSig as _};

                #values
                #layers

                /// Where the layers and the buffers are.
                struct __nn_Plan #args #held;
                #plan

                impl<#bounds __nn_X: __nn::Signature> __nn::Layer<__nn_X> for #own #args {
                    const RULE: __nn::Rule = __nn::module_rule(
                        &#label,
                        &__nn_X::SIG,
                        &__nn::SigOf::<#takes>::SIG,
                        &__nn::SigOf::<#gives>::SIG,
                        &#found,
                        #outputs_from,
                        &[#own_faults #(#faults,)* #(#splits,)*],
                    );
                    const KEEPS_X: bool = #keeps_x;
                    const KEEPS_Y: bool = #keeps_y;
                    const SAVED: __nn::Size = #saved;
                    const CACHE: __nn::Size = __nn::sum(&[#(#cache),*]);
                    const CAUSAL: bool = true #(&& #causal)*;
                    const SCRATCH: __nn::Size = #scratch;
                    const VJP_SCRATCH: __nn::Size = #vjp_scratch;
                    const MACS: usize = #macs;
                    const PLACES: u32 = #places;
                }

                impl<#bounds __nn_D: __nn::Device, __nn_X: __nn::Signature> __nn::Module<__nn_D, __nn_X> for #own #args
                where
                    #(#aliases: __nn::Runs<__nn_D>,)*
                {
                    fn forward(cx: &mut __nn::Ctx<'_, __nn_D>, call: __nn::Forward<'_, __nn_D>) { #forward }
                    fn vjp(cx: &mut __nn::Ctx<'_, __nn_D>, call: __nn::Vjp<'_, __nn_D>) { #vjp }
                    fn describe(out: &mut __nn::Describe) { #(#describe)* }
                }

                impl #params __nn::Declared for #own #args {
                    type In = #takes;
                    type Out = #gives;
                }
                #uses
                #macros
                #checks
            };
        }
    }

    /// The type of a value.
    pub(crate) fn value(&self, value: ValueId) -> TokenStream {
        let (name, args) = (format_ident!("__nn_V{value}"), self.consts.args());
        quote!(#name #args)
    }

    /// The type of a layer with what it is given.
    pub(crate) fn layer(&self, k: usize) -> TokenStream {
        let (name, args) = (format_ident!("__nn_L{k}"), self.consts.args());
        quote!(#name #args)
    }

    /// One of its constants.
    pub(crate) fn of_layer(&self, k: usize, constant: &str) -> TokenStream {
        let (name, constant) = (format_ident!("__nn_L{k}"), format_ident!("{constant}"));
        let args = (!self.consts.is_empty()).then(|| self.consts.args()).map(|args| quote!(:: #args));
        quote!(#name #args :: #constant)
    }

    /// A constant of the plan.
    pub(crate) fn of_plan(&self, constant: &Ident) -> TokenStream {
        let args = (!self.consts.is_empty()).then(|| self.consts.args()).map(|args| quote!(:: #args));
        quote!(__nn_Plan #args :: #constant)
    }

    pub(crate) fn keep(&self, value: ValueId) -> TokenStream {
        self.of_plan(&format_ident!("KEEP_{value}"))
    }

    /// Several values as one type.
    fn signature(&self, values: &[ValueId]) -> TokenStream {
        let values: Vec<_> = values.iter().map(|v| self.value(*v)).collect();
        one_or_tuple(&values)
    }

    /// A type for each value, whose signature is what the layer before it gives: short names, however long
    /// the chain.
    fn values(&self) -> TokenStream {
        let (params, args, held) = (self.consts.params(), self.consts.args(), self.consts.held());
        let one = |value: ValueId, sig: TokenStream| {
            let name = format_ident!("__nn_V{value}");
            quote! {
                struct #name #args #held;
                impl #params __nn::Signature for #name #args {
                    const SIG: __nn::Sig = #sig;
                }
            }
        };
        let inputs = self.graph.inputs.iter().map(|input| {
            let ty = &input.ty;
            one(input.value, quote!(__nn::SigOf::<#ty>::SIG))
        });
        let given = self.graph.nodes.iter().enumerate().flat_map(|(k, node)| {
            let rule = self.of_layer(k, "RULE");
            let nth = |i| node.split.map(|_| Literal::usize_unsuffixed(i)).map(|i| quote!(.nth(#i)));
            node.outputs
                .iter()
                .enumerate()
                .map(move |(i, value)| {
                    let nth = nth(i);
                    one(*value, quote!(#rule.out #nth))
                })
                .collect::<Vec<_>>()
        });
        inputs.chain(given).collect()
    }

    /// A name for each layer with what it is given.
    fn layers(&self) -> TokenStream {
        let args = self.consts.args();
        let Names { own, fields, .. } = self.names;
        let each = self.graph.nodes.iter().enumerate().map(|(k, node)| {
            let (name, x) = (format_ident!("__nn_L{k}"), self.signature(&node.inputs));
            let layer = match &node.callee {
                Callee::Field(field) => quote!(<#own #args as #fields>::#field),
                Callee::Path(ty) => ty.clone(),
            };
            quote!(type #name #args = __nn::At<#layer, #x>;)
        });
        each.collect()
    }

    /// The layers that a node's input comes from.
    fn from(&self, node: &Node) -> String {
        if node.inputs.iter().all(|v| self.graph.is_input(*v)) {
            return String::new();
        }
        let mut from: Vec<_> = node.inputs.iter().map(|v| self.graph.values[*v].from.as_str()).collect();
        from.retain(|name| !name.is_empty());
        from.dedup();
        from.join("` and `")
    }

    /// The layers that the output comes from.
    fn outputs_from(&self) -> String {
        let mut from: Vec<_> =
            self.graph.outputs.iter().map(|v| self.graph.values[*v].from.as_str()).collect();
        from.retain(|name| !name.is_empty());
        from.dedup();
        from.join("` and `")
    }

    /// The name a node has in paths: a field's, without the underscore of an unnamed one.
    fn key(&self, node: &Node) -> String {
        match &node.callee {
            Callee::Field(name) => {
                let name = name.to_string();
                match name.strip_prefix('_') {
                    Some(index) if index.parse::<usize>().is_ok() => index.to_owned(),
                    _ => name.trim_start_matches("r#").to_owned(),
                }
            }
            Callee::Path(_) => String::new(),
        }
    }

    fn any_kept(&self, values: impl Iterator<Item = ValueId>) -> TokenStream {
        or(values.map(|v| self.keep(v)).collect())
    }

    /// The sum of a constant over all layers.
    fn total(&self, constant: &str) -> TokenStream {
        let each = (0..self.graph.nodes.len()).map(|k| self.of_layer(k, constant));
        quote!(#(#each)+*)
    }

    /// What the module is found to give.
    fn found(&self) -> TokenStream {
        let found = self.signature(&self.graph.outputs);
        quote!(<#found as __nn::Signature>::SIG)
    }

    /// The nodes whose tuple is taken apart, with what is wrong with it.
    fn splits(&self) -> impl Iterator<Item = (&Node, TokenStream)> {
        self.graph.nodes.iter().enumerate().filter(|(_, node)| node.split.is_some()).map(|(k, node)| {
            let (rule, count) = (self.of_layer(k, "RULE"), Literal::usize_unsuffixed(node.outputs.len()));
            (node, quote!(__nn::check_split(&#rule.out, #count)))
        })
    }

    /// Where each layer is, which values are kept, and how large each slot is.
    fn plan(&self) -> TokenStream {
        let (params, args) = (self.consts.params(), self.consts.args());
        let graph = self.graph;
        let Names { own, fields, .. } = self.names;
        let steps = graph.nodes.iter().enumerate().map(|(k, node)| {
            let name = format_ident!("STEP_{k}");
            let place = match k.checked_sub(1) {
                None => quote!(0),
                Some(before) => {
                    let (step, places) = (format_ident!("STEP_{before}"), self.of_layer(before, "PLACES"));
                    quote!(Self::#step.place + #places)
                }
            };
            let field = match &node.callee {
                Callee::Field(name) => {
                    let name = name.to_string();
                    quote!(__nn::field(Self::TREE, Self::FIELDS, #name))
                }
                Callee::Path(_) => quote!(__nn::Field::NONE),
            };
            quote!(const #name: __nn::Step = __nn::Step { field: #field, place: #place };)
        });
        let keeps = (0..graph.values.len()).map(|value| {
            let name = format_ident!("KEEP_{value}");
            let nodes = || graph.nodes.iter().enumerate();
            let reads =
                nodes().filter(|(_, n)| n.inputs.contains(&value)).map(|(k, _)| self.of_layer(k, "KEEPS_X"));
            let given =
                nodes().filter(|(_, n)| n.outputs.contains(&value)).map(|(k, _)| self.of_layer(k, "KEEPS_Y"));
            let kept = or(reads.chain(given).collect());
            quote!(const #name: bool = #kept;)
        });
        let slots = |slots: &plan::Slots| {
            let sizes = slots.held.iter().map(|values| {
                let values = values.iter().map(|v| self.value(*v));
                quote!(__nn::largest(&[#(<#values as __nn::Signature>::SIG.size()),*]))
            });
            let n = Literal::usize_unsuffixed(slots.held.len());
            quote!([__nn::Size; #n] = [#(#sizes),*])
        };
        let forward = slots(&plan::forward(graph));
        let backward = slots(&plan::backward(graph).slots);
        let kept = self.between().map(|v| {
            let (keep, value) = (format_ident!("KEEP_{v}"), self.value(v));
            quote!(<#value as __nn::Signature>::SIG.size().when(Self::#keep))
        });
        let each = |constant: &str| -> Vec<_> {
            (0..graph.nodes.len()).map(|k| self.of_layer(k, constant)).collect()
        };
        let (saved, scratch, vjp_scratch) = (each("SAVED"), each("SCRATCH"), each("VJP_SCRATCH"));
        quote! {
            impl #params __nn_Plan #args {
                const LABEL: __nn::Text = __nn::Part::<#own #args>::LABEL;
                const TREE: &'static __nn::Node = __nn::Part::<#own #args>::TREE;
                const FIELDS: &'static [&'static str] = <#own #args as #fields>::NAMES;
                #(#steps)*
                #(#keeps)*
                const SLOTS: #forward;
                const VJP_SLOTS: #backward;
                const SAVED: __nn::Size = __nn::sum(&[#(#kept,)* #(#saved),*]);
                const SCRATCH: __nn::Size = __nn::sum(&Self::SLOTS).plus(__nn::largest(&[#(#scratch),*]));
                const VJP_SCRATCH: __nn::Size = __nn::sum(&Self::VJP_SLOTS).plus(__nn::largest(&[#(#vjp_scratch),*]));
            }
        }
    }

    /// Values that are neither input nor output.
    fn between(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.graph.nodes.iter().flat_map(|n| &n.outputs).copied().filter(|v| !self.graph.outputs.contains(v))
    }

    /// What stops the compiler, each at the user's own token. A generic module is checked where it is made
    /// concrete.
    fn checks(&self) -> TokenStream {
        if !self.consts.is_empty() {
            return TokenStream::new();
        }
        let each = self.graph.nodes.iter().enumerate().map(|(k, node)| {
            let (field, from, rule) = (self.key(node), self.from(node), self.of_layer(k, "RULE"));
            let fits = check(node.span, "accept_from", quote!(&#rule.fault, #field, #from));
            let free = match &node.callee {
                Callee::Path(ty) => {
                    let part = quote!(__nn::Part::<#ty>);
                    Some(check(node.span, "accept", quote!(&__nn::check_free(&#part::LABEL, #part::TREE))))
                }
                Callee::Field(_) => None,
            };
            quote!(#fits #free)
        });
        let splits =
            self.splits().filter_map(|(node, fault)| Some(check(node.split?, "accept", quote!(&#fault))));
        let label = self.of_plan(&format_ident!("LABEL"));
        let label = quote!(&#label);
        let possible = self.graph.inputs.iter().map(|input| {
            let ty = &input.ty;
            check(ends(ty), "accept", quote!(&__nn::check_possible(#label, "take", &__nn::SigOf::<#ty>::SIG)))
        });
        let (gives, found, from) = (&self.gives, self.found(), self.outputs_from());
        let gives = quote!(&__nn::SigOf::<#gives>::SIG);
        let declared = quote!(&__nn::check_declared(#label, #gives, &#found, #from));
        let declared = check(self.gives_span, "accept", declared);
        quote!(#(#each)* #(#splits)* #(#possible)* #declared)
    }
}

pub(crate) fn one_or_tuple(types: &[impl quote::ToTokens]) -> TokenStream {
    if let [one] = types { quote!(#one) } else { quote!((#(#types,)*)) }
}

fn or(conditions: Vec<TokenStream>) -> TokenStream {
    if conditions.is_empty() { quote!(false) } else { quote!(#(#conditions)||*) }
}
