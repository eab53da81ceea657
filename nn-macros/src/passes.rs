use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Token;

use crate::arithmetic::Arithmetic;
use crate::graph::ValueId;
use crate::plan::{self, Write};

/// The variables of values.
fn named(prefix: &str, values: &[ValueId]) -> Vec<Ident> {
    values.iter().map(|v| format_ident!("{prefix}{v}")).collect()
}

/// The two passes.
impl Arithmetic<'_> {
    /// Splits `whole` into one variable a value.
    fn parts(
        &self,
        whole: &Ident,
        prefix: &str,
        mutable: Option<Token![mut]>,
        values: &[ValueId],
    ) -> TokenStream {
        if let [one] = values {
            let name = format_ident!("{prefix}{one}");
            return quote!(let #mutable #name = #whole;);
        }
        let splits = values.iter().map(|v| {
            let (name, marker) = (format_ident!("{prefix}{v}"), self.value(*v));
            quote!(let (#mutable #name, #whole) = #whole.split(<#marker as __nn::Signature>::SIG.len());)
        });
        quote!(#(#splits)* let _ = #whole;)
    }

    /// A reference to all `names` together, to be read. A single one is lent as it is.
    fn read(names: &[Ident]) -> TokenStream {
        match names {
            [] => quote!(&__nn::Tensors::EMPTY),
            [name] => quote!(&#name),
            [first, rest @ ..] => quote!(&#first.shorten()#(.join(#rest.shorten()))*),
        }
    }

    /// A reference to all `names` together, to be written.
    fn write(names: &[Ident]) -> TokenStream {
        match names {
            [] => quote!(&mut __nn::TensorsMut::empty()),
            [name] => quote!(&mut #name),
            [first, rest @ ..] => quote!(&mut #first.reborrow()#(.join(#rest.reborrow()))*),
        }
    }

    pub(crate) fn forward(&self) -> TokenStream {
        let graph = self.graph;
        let slots = plan::forward(graph);
        let sizes = self.of_plan(&format_ident!("SLOTS"));
        let slot_names: Vec<_> = (0..slots.held.len()).map(|i| format_ident!("slot{i}")).collect();
        let slot_index = (0..slots.held.len()).map(Literal::usize_unsuffixed);
        let inputs: Vec<_> = graph.inputs.iter().map(|i| i.value).collect();
        let (x, y) = (format_ident!("x"), format_ident!("y"));
        let split_x = self.parts(&x, "v", None, &inputs);
        let split_y = self.parts(&y, "y", Some(<Token![mut]>::default()), &graph.outputs);
        let steps = graph.nodes.iter().enumerate().map(|(k, node)| {
            let (layer, step) = (self.layer(k), self.of_plan(&format_ident!("STEP_{k}")));
            let buffers = node.outputs.iter().filter(|v| !graph.outputs.contains(v)).map(|v| {
                let (name, marker, keep) = (format_ident!("y{v}"), self.value(*v), self.keep(*v));
                let slot = format_ident!("slot{}", slots.of[v]);
                quote!(let mut #name = __nn::value::<__nn_D, #marker>(cx, #keep, &mut saved, &mut #slot);)
            });
            let input = Self::read(&named("v", &node.inputs));
            let output = Self::write(&named("y", &node.outputs));
            let done = node.outputs.iter().map(|v| {
                let (y, value) = (format_ident!("y{v}"), format_ident!("v{v}"));
                if graph.nodes.iter().any(|n| n.inputs.contains(v)) {
                    let marker = self.value(*v);
                    Some(quote!(let #value = __nn::freeze::<__nn_D, #marker>(#y);))
                } else {
                    // Ends the loan of the slot, which a later value may take.
                    slots.of.contains_key(v).then(|| quote!(::core::mem::drop(#y);))
                }
            });
            quote_spanned! {node.span.0.resolved_at(Span::call_site())=>
                #(#buffers)*
                __nn::forward::<__nn_D, #layer>(
                    cx, #step, params, &mut state, #input, #output, &mut saved, &mut scratch,
                );
                #(#done)*
            }
        });
        quote! {
            let __nn::Forward { params, mut state, x, y, mut saved, mut scratch } = call;
            #split_x
            #split_y
            #(let mut #slot_names = scratch.part(cx, #sizes[#slot_index]);)*
            #(#steps)*
        }
    }

    pub(crate) fn vjp(&self) -> TokenStream {
        let graph = self.graph;
        let back = plan::backward(graph);
        let sizes = self.of_plan(&format_ident!("VJP_SLOTS"));
        let slot_names: Vec<_> = (0..back.slots.held.len()).map(|i| format_ident!("slot{i}")).collect();
        let slot_index = (0..back.slots.held.len()).map(Literal::usize_unsuffixed);
        let inputs: Vec<_> = graph.inputs.iter().map(|i| i.value).collect();
        let [x, y, dx, dy] = ["x", "y", "dx", "dy"].map(|n| format_ident!("{n}"));
        let split_x = self.parts(&x, "v", None, &inputs);
        let split_y = self.parts(&y, "v", None, &graph.outputs);
        let split_dx = self.parts(&dx, "g", Some(<Token![mut]>::default()), &inputs);
        let split_dy = self.parts(&dy, "dy", None, &graph.outputs);
        let unread = inputs.iter().filter(|v| !graph.nodes.iter().any(|n| n.inputs.contains(v))).map(|v| {
            let g = format_ident!("g{v}");
            quote!(#g.zero(cx);)
        });

        let saved = graph.nodes.iter().enumerate().map(|(k, node)| {
            let (size, own) = (self.of_layer(k, "SAVED"), format_ident!("saved{k}"));
            let values = node.outputs.iter().filter(|v| !graph.outputs.contains(v)).map(|v| {
                let (name, marker, keep) = (format_ident!("v{v}"), self.value(*v), self.keep(*v));
                quote!(let #name = __nn::kept::<__nn_D, #marker>(cx, #keep, &mut saved);)
            });
            quote! {
                #(#values)*
                let #own = saved.part(cx, #size);
            }
        });
        let copied = back.copied.iter().map(|v| {
            let (g, dy, marker) = (format_ident!("g{v}"), format_ident!("dy{v}"), self.value(*v));
            let slot = format_ident!("slot{}", back.slots.of[v]);
            quote! {
                let mut #g = __nn::gradient::<__nn_D, #marker>(cx, &mut #slot);
                #g.copy(cx, #dy);
            }
        });
        let steps = graph.nodes.iter().enumerate().rev().map(|(k, node)| {
            let (layer, step) = (self.layer(k), self.of_plan(&format_ident!("STEP_{k}")));
            let own = format_ident!("saved{k}");
            let zeroed = node.outputs.iter().filter(|v| back.zeroed.contains(v)).map(|v| {
                let (g, marker) = (format_ident!("g{v}"), self.value(*v));
                let slot = format_ident!("slot{}", back.slots.of[v]);
                quote! {
                    let mut #g = __nn::gradient::<__nn_D, #marker>(cx, &mut #slot);
                    #g.zero(cx);
                }
            });
            let mut buffers = TokenStream::new();
            let mut sums = TokenStream::new();
            let mut gradients = Vec::new();
            for (i, (value, write)) in node.inputs.iter().zip(&back.writes[k]).enumerate() {
                let (g, marker) = (format_ident!("g{value}"), self.value(*value));
                match write {
                    Write::First => {
                        if let Some(slot) = back.slots.of.get(value) {
                            let slot = format_ident!("slot{slot}");
                            buffers.extend(
                                quote!(let mut #g = __nn::gradient::<__nn_D, #marker>(cx, &mut #slot);),
                            );
                        }
                        gradients.push(g);
                    }
                    Write::Add(slot) => {
                        let (t, slot) = (format_ident!("t{i}"), format_ident!("slot{slot}"));
                        buffers
                            .extend(quote!(let mut #t = __nn::gradient::<__nn_D, #marker>(cx, &mut #slot);));
                        sums.extend(quote!(#g.add(cx, #t.read()); ::core::mem::drop(#t);));
                        gradients.push(t);
                    }
                }
            }
            let dx = Self::write(&gradients);
            let (x, y) = (Self::read(&named("v", &node.inputs)), Self::read(&named("v", &node.outputs)));
            let incoming = node.outputs.iter().map(|v| {
                let (dy, g, marker) = (format_ident!("dy{v}"), format_ident!("g{v}"), self.value(*v));
                // Gradients that were written here are to be read for this once.
                let written = !graph.outputs.contains(v) || back.copied.contains(v);
                (written.then(|| quote!(let #dy = __nn::read::<__nn_D, #marker>(&#g);)), dy)
            });
            let (incoming, dy): (Vec<_>, Vec<_>) = incoming.unzip();
            let dy = Self::read(&dy);
            // Ends the loan of the slot, which a later gradient may take.
            let done = node.outputs.iter().filter(|v| back.slots.of.contains_key(v)).map(|v| {
                let g = format_ident!("g{v}");
                quote!(::core::mem::drop(#g);)
            });
            quote_spanned! {node.span.0.resolved_at(Span::call_site())=>
                #(#zeroed)*
                #buffers
                #(#incoming)*
                __nn::vjp::<__nn_D, #layer>(
                    cx, #step, params, state, #x, #y, #own, #dy, #dx, &mut dparams, &mut scratch,
                );
                #sums
                #(#done)*
            }
        });
        quote! {
            let __nn::Vjp { params, state, x, y, mut saved, dy, dx, mut dparams, mut scratch } = call;
            #split_x
            #split_y
            #split_dy
            #split_dx
            #(#saved)*
            #(let mut #slot_names = scratch.part(cx, #sizes[#slot_index]);)*
            #(#unread)*
            #(#copied)*
            #(#steps)*
        }
    }
}
