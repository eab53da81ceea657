// What the macros make of block.rs. Written by `NN_BLESS=1 cargo test -p nn-macros`.

///[`Block`] over dimensions that are types.
#[allow(clippy::type_complexity, reason = "computed arguments are written as types")]
pub struct BlockOf<D: ::nn::Dim> {
    norm: <LayerNorm<{ ::nn::place(0) }> as ::nn::Rebind<(::nn::Place<0, D>,)>>::To,
    up: <LinearGELU<
        { ::nn::place(0) },
        { ::nn::place(1) },
    > as ::nn::Rebind<
        (::nn::Place<0, D>, ::nn::Place<1, ::nn::Times<::nn::C<4>, D>>),
    >>::To,
    down: <Linear<
        { ::nn::place(0) },
        { ::nn::place(1) },
    > as ::nn::Rebind<
        (::nn::Place<0, ::nn::Times<::nn::C<4>, D>>, ::nn::Place<1, D>),
    >>::To,
    __nn_dims: ::core::marker::PhantomData<(D,)>,
}
/// A residual block.
pub type Block<const D: usize> = BlockOf<::nn::C<D>>;
///The parameters of [`Block`], a field each layer.
#[allow(
    non_camel_case_types,
    reason = "`__nn_` keeps these names from meeting the user's"
)]
#[allow(
    private_bounds,
    private_interfaces,
    reason = "which layer a field is may be private"
)]
#[allow(
    clippy::pub_underscore_fields,
    reason = "a layer without a name has its number, `_0`"
)]
pub struct BlockView<__nn_A: ::nn::Access, __nn_M: BlockFields> {
    ///The parameters of `norm`.
    pub norm: <__nn_M::norm as ::nn::Views>::View<__nn_A>,
    ///The parameters of `up`.
    pub up: <__nn_M::up as ::nn::Views>::View<__nn_A>,
    ///The parameters of `down`.
    pub down: <__nn_M::down as ::nn::Views>::View<__nn_A>,
    __nn_model: ::core::marker::PhantomData<(__nn_A, __nn_M)>,
}
#[doc(hidden)]
#[allow(non_camel_case_types, reason = "named as the fields are")]
trait BlockFields {
    type norm: ::nn::Views;
    type up: ::nn::Views;
    type down: ::nn::Views;
    const NAMES: &'static [&'static str];
}
#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    reason = "`__nn_` keeps these names from meeting the user's"
)]
#[allow(clippy::type_complexity, reason = "computed arguments are written as types")]
const _: () = {
    use ::nn::__private as __nn;
    #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
    use __nn::{NoPart as _, NoUses as _};
    impl<D: ::nn::Dim> BlockFields for BlockOf<D> {
        type norm = <LayerNorm<
            { ::nn::place(0) },
        > as ::nn::Rebind<(::nn::Place<0, D>,)>>::To;
        type up = <LinearGELU<
            { ::nn::place(0) },
            { ::nn::place(1) },
        > as ::nn::Rebind<
            (::nn::Place<0, D>, ::nn::Place<1, ::nn::Times<::nn::C<4>, D>>),
        >>::To;
        type down = <Linear<
            { ::nn::place(0) },
            { ::nn::place(1) },
        > as ::nn::Rebind<
            (::nn::Place<0, ::nn::Times<::nn::C<4>, D>>, ::nn::Place<1, D>),
        >>::To;
        const NAMES: &'static [&'static str] = &[
            stringify!(norm),
            stringify!(up),
            stringify!(down),
        ];
    }
    impl<D: ::nn::Dim> __nn::Params for BlockOf<D> {
        const LABEL: __nn::Text = __nn::label("Block", &[<D as __nn::Dim>::EXTENT]);
        const TREE: &'static __nn::Node = &__nn::Node::new(
            &[],
            &[
                __nn::Child::new(
                    "norm",
                    __nn::Part::<<Self as BlockFields>::norm>::TREE,
                ),
                __nn::Child::new("up", __nn::Part::<<Self as BlockFields>::up>::TREE),
                __nn::Child::new("down", __nn::Part::<<Self as BlockFields>::down>::TREE),
            ],
        );
    }
    impl<__nn_A: __nn::Access, __nn_M: BlockFields> __nn::FromArenas<__nn_A>
    for BlockView<__nn_A, __nn_M> {
        fn from_arenas(mut arenas: __nn::Arenas<__nn_A>) -> Self {
            Self {
                norm: arenas.child(0),
                up: arenas.child(1),
                down: arenas.child(2),
                __nn_model: ::core::marker::PhantomData,
            }
        }
    }
    impl<D: ::nn::Dim> __nn::Views for BlockOf<D> {
        type View<__nn_A: __nn::Access> = BlockView<__nn_A, Self>;
    }
    impl<D: __nn::Dim, __nn_D: __nn::Arg<D>> __nn::Rebind<(__nn_D,)> for BlockOf<D>
    where
        <__nn_D as __nn::Arg<D>>::To: __nn::Dim,
    {
        type To = BlockOf<<__nn_D as __nn::Arg<D>>::To>;
    }
    impl<D: ::nn::Dim> ::core::default::Default for BlockOf<D> {
        fn default() -> Self {
            Self {
                norm: __nn::Part::<<Self as BlockFields>::norm>::value(),
                up: __nn::Part::<<Self as BlockFields>::up>::value(),
                down: __nn::Part::<<Self as BlockFields>::down>::value(),
                __nn_dims: ::core::marker::PhantomData,
            }
        }
    }
    impl<D: ::nn::Dim> ::core::clone::Clone for BlockOf<D> {
        fn clone(&self) -> Self {
            Self::default()
        }
    }
    impl<D: ::nn::Dim> ::core::fmt::Debug for BlockOf<D> {
        fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
            f.debug_struct(<Self as __nn::Params>::LABEL.as_str())
                .field(
                    "norm",
                    __nn::Part::<<Self as BlockFields>::norm>::debug(&self.norm),
                )
                .field("up", __nn::Part::<<Self as BlockFields>::up>::debug(&self.up))
                .field(
                    "down",
                    __nn::Part::<<Self as BlockFields>::down>::debug(&self.down),
                )
                .finish()
        }
    }
    const _: () = __nn::has_forward::<BlockOf<__nn::C<1>>>();
    type __nn_Any = BlockOf<__nn::C<1>>;
    const __nn_USED: ::core::option::Option<&'static [&'static str]> = __nn::UsesOf::<
        __nn_Any,
    >::FIELDS;
    const _: () = __nn::accept(
        &__nn::check_used(
            __nn_USED,
            "norm",
            &__nn::Part::<<__nn_Any as BlockFields>::norm>::LABEL,
        ),
    );
    const _: () = __nn::accept(
        &__nn::check_used(
            __nn_USED,
            "up",
            &__nn::Part::<<__nn_Any as BlockFields>::up>::LABEL,
        ),
    );
    const _: () = __nn::accept(
        &__nn::check_used(
            __nn_USED,
            "down",
            &__nn::Part::<<__nn_Any as BlockFields>::down>::LABEL,
        ),
    );
};
#[allow(
    non_camel_case_types,
    reason = "`__nn_` keeps these names from meeting the user's"
)]
const _: () = {
    use ::nn::__private as __nn;
    #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
    use __nn::{NoLayer as _, NoPart as _, NoSig as _};
    struct __nn_V0<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn::Signature for __nn_V0<D> {
        const SIG: __nn::Sig = __nn::SigOf::<::nn::S1<D>>::SIG;
    }
    struct __nn_V1<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn::Signature for __nn_V1<D> {
        const SIG: __nn::Sig = __nn_L0::<D>::RULE.out;
    }
    struct __nn_V2<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn::Signature for __nn_V2<D> {
        const SIG: __nn::Sig = __nn_L1::<D>::RULE.out;
    }
    struct __nn_V3<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn::Signature for __nn_V3<D> {
        const SIG: __nn::Sig = __nn_L2::<D>::RULE.out;
    }
    struct __nn_V4<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn::Signature for __nn_V4<D> {
        const SIG: __nn::Sig = __nn_L3::<D>::RULE.out;
    }
    type __nn_L0<D> = __nn::At<<BlockOf<D> as BlockFields>::norm, __nn_V0<D>>;
    type __nn_L1<D> = __nn::At<<BlockOf<D> as BlockFields>::up, __nn_V1<D>>;
    type __nn_L2<D> = __nn::At<<BlockOf<D> as BlockFields>::down, __nn_V2<D>>;
    type __nn_L3<D> = __nn::At<::nn::Add, (__nn_V0<D>, __nn_V3<D>)>;
    /// Where the layers and the buffers are.
    struct __nn_Plan<D>(::core::marker::PhantomData<(D,)>);
    impl<D: ::nn::Dim> __nn_Plan<D> {
        const LABEL: __nn::Text = __nn::Part::<BlockOf<D>>::LABEL;
        const TREE: &'static __nn::Node = __nn::Part::<BlockOf<D>>::TREE;
        const FIELDS: &'static [&'static str] = <BlockOf<D> as BlockFields>::NAMES;
        const STEP_0: __nn::Step = __nn::Step {
            field: __nn::field(Self::TREE, Self::FIELDS, "norm"),
            place: 0,
        };
        const STEP_1: __nn::Step = __nn::Step {
            field: __nn::field(Self::TREE, Self::FIELDS, "up"),
            place: Self::STEP_0.place + __nn_L0::<D>::PLACES,
        };
        const STEP_2: __nn::Step = __nn::Step {
            field: __nn::field(Self::TREE, Self::FIELDS, "down"),
            place: Self::STEP_1.place + __nn_L1::<D>::PLACES,
        };
        const STEP_3: __nn::Step = __nn::Step {
            field: __nn::Field::NONE,
            place: Self::STEP_2.place + __nn_L2::<D>::PLACES,
        };
        const KEEP_0: bool = __nn_L0::<D>::KEEPS_X || __nn_L3::<D>::KEEPS_X;
        const KEEP_1: bool = __nn_L1::<D>::KEEPS_X || __nn_L0::<D>::KEEPS_Y;
        const KEEP_2: bool = __nn_L2::<D>::KEEPS_X || __nn_L1::<D>::KEEPS_Y;
        const KEEP_3: bool = __nn_L3::<D>::KEEPS_X || __nn_L2::<D>::KEEPS_Y;
        const KEEP_4: bool = __nn_L3::<D>::KEEPS_Y;
        const SLOTS: [__nn::Size; 2] = [
            __nn::largest(
                &[
                    <__nn_V1<D> as __nn::Signature>::SIG.size(),
                    <__nn_V3<D> as __nn::Signature>::SIG.size(),
                ],
            ),
            __nn::largest(&[<__nn_V2<D> as __nn::Signature>::SIG.size()]),
        ];
        const VJP_SLOTS: [__nn::Size; 2] = [
            __nn::largest(
                &[
                    <__nn_V3<D> as __nn::Signature>::SIG.size(),
                    <__nn_V1<D> as __nn::Signature>::SIG.size(),
                ],
            ),
            __nn::largest(
                &[
                    <__nn_V2<D> as __nn::Signature>::SIG.size(),
                    <__nn_V0<D> as __nn::Signature>::SIG.size(),
                ],
            ),
        ];
        const SAVED: __nn::Size = __nn::sum(
            &[
                <__nn_V1<D> as __nn::Signature>::SIG.size().when(Self::KEEP_1),
                <__nn_V2<D> as __nn::Signature>::SIG.size().when(Self::KEEP_2),
                <__nn_V3<D> as __nn::Signature>::SIG.size().when(Self::KEEP_3),
                __nn_L0::<D>::SAVED,
                __nn_L1::<D>::SAVED,
                __nn_L2::<D>::SAVED,
                __nn_L3::<D>::SAVED,
            ],
        );
        const SCRATCH: __nn::Size = __nn::sum(&Self::SLOTS)
            .plus(
                __nn::largest(
                    &[
                        __nn_L0::<D>::SCRATCH,
                        __nn_L1::<D>::SCRATCH,
                        __nn_L2::<D>::SCRATCH,
                        __nn_L3::<D>::SCRATCH,
                    ],
                ),
            );
        const VJP_SCRATCH: __nn::Size = __nn::sum(&Self::VJP_SLOTS)
            .plus(
                __nn::largest(
                    &[
                        __nn_L0::<D>::VJP_SCRATCH,
                        __nn_L1::<D>::VJP_SCRATCH,
                        __nn_L2::<D>::VJP_SCRATCH,
                        __nn_L3::<D>::VJP_SCRATCH,
                    ],
                ),
            );
    }
    impl<D: ::nn::Dim, __nn_X: __nn::Signature> __nn::Layer<__nn_X> for BlockOf<D> {
        const RULE: __nn::Rule = __nn::module_rule(
            &__nn_Plan::<D>::LABEL,
            &__nn_X::SIG,
            &__nn::SigOf::<::nn::S1<D>>::SIG,
            &__nn::SigOf::<::nn::S1<D>>::SIG,
            &<__nn_V4<D> as __nn::Signature>::SIG,
            "+",
            &[
                __nn::Part::<BlockOf<D>>::TREE.check(),
                __nn::check_free(
                    &__nn::Part::<::nn::Add>::LABEL,
                    __nn::Part::<::nn::Add>::TREE,
                ),
                __nn::within(__nn_L0::<D>::RULE.fault, "norm", ""),
                __nn::within(__nn_L1::<D>::RULE.fault, "up", "norm"),
                __nn::within(__nn_L2::<D>::RULE.fault, "down", "up"),
                __nn::within(__nn_L3::<D>::RULE.fault, "", "x` and `down"),
            ],
        );
        const KEEPS_X: bool = __nn_Plan::<D>::KEEP_0;
        const KEEPS_Y: bool = __nn_Plan::<D>::KEEP_4;
        const SAVED: __nn::Size = __nn_Plan::<D>::SAVED;
        const CACHE: __nn::Size = __nn::sum(
            &[
                __nn_L0::<D>::CACHE,
                __nn_L1::<D>::CACHE,
                __nn_L2::<D>::CACHE,
                __nn_L3::<D>::CACHE,
            ],
        );
        const CAUSAL: bool = true && __nn_L0::<D>::CAUSAL && __nn_L1::<D>::CAUSAL
            && __nn_L2::<D>::CAUSAL && __nn_L3::<D>::CAUSAL;
        const SCRATCH: __nn::Size = __nn_Plan::<D>::SCRATCH;
        const VJP_SCRATCH: __nn::Size = __nn_Plan::<D>::VJP_SCRATCH;
        const MACS: usize = __nn_L0::<D>::MACS + __nn_L1::<D>::MACS + __nn_L2::<D>::MACS
            + __nn_L3::<D>::MACS;
        const PLACES: u32 = __nn_L0::<D>::PLACES + __nn_L1::<D>::PLACES
            + __nn_L2::<D>::PLACES + __nn_L3::<D>::PLACES;
    }
    impl<
        D: ::nn::Dim,
        __nn_D: __nn::Device,
        __nn_X: __nn::Signature,
    > __nn::Module<__nn_D, __nn_X> for BlockOf<D>
    where
        __nn_L0<D>: __nn::Runs<__nn_D>,
        __nn_L1<D>: __nn::Runs<__nn_D>,
        __nn_L2<D>: __nn::Runs<__nn_D>,
        __nn_L3<D>: __nn::Runs<__nn_D>,
    {
        fn forward(cx: &mut __nn::Ctx<'_, __nn_D>, call: __nn::Forward<'_, __nn_D>) {
            let __nn::Forward { params, mut state, x, y, mut saved, mut scratch } = call;
            let v0 = x;
            let mut y4 = y;
            let mut slot0 = scratch.part(cx, __nn_Plan::<D>::SLOTS[0]);
            let mut slot1 = scratch.part(cx, __nn_Plan::<D>::SLOTS[1]);
            let mut y1 = __nn::value::<
                __nn_D,
                __nn_V1<D>,
            >(cx, __nn_Plan::<D>::KEEP_1, &mut saved, &mut slot0);
            __nn::forward::<
                __nn_D,
                __nn_L0<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_0,
                params,
                &mut state,
                &v0,
                &mut y1,
                &mut saved,
                &mut scratch,
            );
            let v1 = __nn::freeze::<__nn_D, __nn_V1<D>>(y1);
            let mut y2 = __nn::value::<
                __nn_D,
                __nn_V2<D>,
            >(cx, __nn_Plan::<D>::KEEP_2, &mut saved, &mut slot1);
            __nn::forward::<
                __nn_D,
                __nn_L1<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_1,
                params,
                &mut state,
                &v1,
                &mut y2,
                &mut saved,
                &mut scratch,
            );
            let v2 = __nn::freeze::<__nn_D, __nn_V2<D>>(y2);
            let mut y3 = __nn::value::<
                __nn_D,
                __nn_V3<D>,
            >(cx, __nn_Plan::<D>::KEEP_3, &mut saved, &mut slot0);
            __nn::forward::<
                __nn_D,
                __nn_L2<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_2,
                params,
                &mut state,
                &v2,
                &mut y3,
                &mut saved,
                &mut scratch,
            );
            let v3 = __nn::freeze::<__nn_D, __nn_V3<D>>(y3);
            __nn::forward::<
                __nn_D,
                __nn_L3<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_3,
                params,
                &mut state,
                &v0.shorten().join(v3.shorten()),
                &mut y4,
                &mut saved,
                &mut scratch,
            );
        }
        fn vjp(cx: &mut __nn::Ctx<'_, __nn_D>, call: __nn::Vjp<'_, __nn_D>) {
            let __nn::Vjp {
                params,
                state,
                x,
                y,
                mut saved,
                dy,
                dx,
                mut dparams,
                mut scratch,
            } = call;
            let v0 = x;
            let v4 = y;
            let dy4 = dy;
            let mut g0 = dx;
            let v1 = __nn::kept::<
                __nn_D,
                __nn_V1<D>,
            >(cx, __nn_Plan::<D>::KEEP_1, &mut saved);
            let saved0 = saved.part(cx, __nn_L0::<D>::SAVED);
            let v2 = __nn::kept::<
                __nn_D,
                __nn_V2<D>,
            >(cx, __nn_Plan::<D>::KEEP_2, &mut saved);
            let saved1 = saved.part(cx, __nn_L1::<D>::SAVED);
            let v3 = __nn::kept::<
                __nn_D,
                __nn_V3<D>,
            >(cx, __nn_Plan::<D>::KEEP_3, &mut saved);
            let saved2 = saved.part(cx, __nn_L2::<D>::SAVED);
            let saved3 = saved.part(cx, __nn_L3::<D>::SAVED);
            let mut slot0 = scratch.part(cx, __nn_Plan::<D>::VJP_SLOTS[0]);
            let mut slot1 = scratch.part(cx, __nn_Plan::<D>::VJP_SLOTS[1]);
            let mut g3 = __nn::gradient::<__nn_D, __nn_V3<D>>(cx, &mut slot0);
            __nn::vjp::<
                __nn_D,
                __nn_L3<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_3,
                params,
                state,
                &v0.shorten().join(v3.shorten()),
                &v4,
                saved3,
                &dy4,
                &mut g0.reborrow().join(g3.reborrow()),
                &mut dparams,
                &mut scratch,
            );
            let mut g2 = __nn::gradient::<__nn_D, __nn_V2<D>>(cx, &mut slot1);
            let dy3 = __nn::read::<__nn_D, __nn_V3<D>>(&g3);
            __nn::vjp::<
                __nn_D,
                __nn_L2<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_2,
                params,
                state,
                &v2,
                &v3,
                saved2,
                &dy3,
                &mut g2,
                &mut dparams,
                &mut scratch,
            );
            ::core::mem::drop(g3);
            let mut g1 = __nn::gradient::<__nn_D, __nn_V1<D>>(cx, &mut slot0);
            let dy2 = __nn::read::<__nn_D, __nn_V2<D>>(&g2);
            __nn::vjp::<
                __nn_D,
                __nn_L1<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_1,
                params,
                state,
                &v1,
                &v2,
                saved1,
                &dy2,
                &mut g1,
                &mut dparams,
                &mut scratch,
            );
            ::core::mem::drop(g2);
            let mut t0 = __nn::gradient::<__nn_D, __nn_V0<D>>(cx, &mut slot1);
            let dy1 = __nn::read::<__nn_D, __nn_V1<D>>(&g1);
            __nn::vjp::<
                __nn_D,
                __nn_L0<D>,
            >(
                cx,
                __nn_Plan::<D>::STEP_0,
                params,
                state,
                &v0,
                &v1,
                saved0,
                &dy1,
                &mut t0,
                &mut dparams,
                &mut scratch,
            );
            g0.add(cx, t0.read());
            ::core::mem::drop(t0);
            ::core::mem::drop(g1);
        }
        fn describe(out: &mut __nn::Describe) {
            __nn::describe_part::<
                __nn_D,
                __nn_L0<D>,
            >(out, __nn::child(__nn_Plan::<D>::TREE, __nn_Plan::<D>::FIELDS, "norm"));
            __nn::describe_part::<
                __nn_D,
                __nn_L1<D>,
            >(out, __nn::child(__nn_Plan::<D>::TREE, __nn_Plan::<D>::FIELDS, "up"));
            __nn::describe_part::<
                __nn_D,
                __nn_L2<D>,
            >(out, __nn::child(__nn_Plan::<D>::TREE, __nn_Plan::<D>::FIELDS, "down"));
            __nn::describe::<__nn_D, __nn_L3<D>>(out);
        }
    }
    impl<D: ::nn::Dim> __nn::Declared for BlockOf<D> {
        type In = ::nn::S1<D>;
        type Out = ::nn::S1<D>;
    }
    impl<D: ::nn::Dim> __nn::Uses for BlockOf<D> {
        const FIELDS: ::core::option::Option<&'static [&'static str]> = ::core::option::Option::Some(
            &["norm", "up", "down"],
        );
    }
    const _: ::core::marker::PhantomData<T![]> = ::core::marker::PhantomData;
};
/// A block that is checked where it stands.
pub type Tiny = Block<8>;
const _: () = {
    use ::nn::__private as __nn;
    const _: () = __nn::accept(
        &<Tiny as __nn::Layer<<Tiny as __nn::Declared>::In>>::RULE.fault,
    );
};
