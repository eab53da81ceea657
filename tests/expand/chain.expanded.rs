// What the macros make of chain.rs. Written by `NN_BLESS=1 cargo test -p nn-macros`.

/// Two layers.
pub struct Net {
    _0: LinearReLU<784, 64>,
    _1: Linear<64, 10>,
}
///The parameters of [`Net`], a field each layer.
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
pub struct NetView<__nn_A: ::nn::Access, __nn_M: NetFields = Net> {
    ///The parameters of `0`.
    pub _0: <__nn_M::_0 as ::nn::Views>::View<__nn_A>,
    ///The parameters of `1`.
    pub _1: <__nn_M::_1 as ::nn::Views>::View<__nn_A>,
    __nn_model: ::core::marker::PhantomData<(__nn_A, __nn_M)>,
}
#[doc(hidden)]
#[allow(non_camel_case_types, reason = "named as the fields are")]
trait NetFields {
    type _0: ::nn::Views;
    type _1: ::nn::Views;
    const NAMES: &'static [&'static str];
}
#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    reason = "`__nn_` keeps these names from meeting the user's"
)]
const _: () = {
    use ::nn::__private as __nn;
    #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
    use __nn::{NoPart as _, NoUses as _};
    impl NetFields for Net {
        type _0 = LinearReLU<784, 64>;
        type _1 = Linear<64, 10>;
        const NAMES: &'static [&'static str] = &[stringify!(_0), stringify!(_1)];
    }
    impl __nn::Params for Net {
        const LABEL: __nn::Text = __nn::label("Net", &[]);
        const TREE: &'static __nn::Node = &__nn::Node::new(
            &[],
            &[
                __nn::Child::new("0", __nn::Part::<<Self as NetFields>::_0>::TREE),
                __nn::Child::new("1", __nn::Part::<<Self as NetFields>::_1>::TREE),
            ],
        );
    }
    impl<__nn_A: __nn::Access, __nn_M: NetFields> __nn::FromArenas<__nn_A>
    for NetView<__nn_A, __nn_M> {
        fn from_arenas(mut arenas: __nn::Arenas<__nn_A>) -> Self {
            Self {
                _0: arenas.child(0),
                _1: arenas.child(1),
                __nn_model: ::core::marker::PhantomData,
            }
        }
    }
    impl __nn::Views for Net {
        type View<__nn_A: __nn::Access> = NetView<__nn_A, Self>;
    }
    impl ::core::default::Default for Net {
        fn default() -> Self {
            Self {
                _0: __nn::Part::<<Self as NetFields>::_0>::value(),
                _1: __nn::Part::<<Self as NetFields>::_1>::value(),
            }
        }
    }
    impl ::core::clone::Clone for Net {
        fn clone(&self) -> Self {
            Self::default()
        }
    }
    impl ::core::fmt::Debug for Net {
        fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
            f.debug_struct(<Self as __nn::Params>::LABEL.as_str())
                .field("0", __nn::Part::<<Self as NetFields>::_0>::debug(&self._0))
                .field("1", __nn::Part::<<Self as NetFields>::_1>::debug(&self._1))
                .finish()
        }
    }
};
#[allow(
    non_camel_case_types,
    reason = "`__nn_` keeps these names from meeting the user's"
)]
const _: () = {
    use ::nn::__private as __nn;
    #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
    use __nn::{NoLayer as _, NoPart as _, NoSig as _};
    struct __nn_V0;
    impl __nn::Signature for __nn_V0 {
        const SIG: __nn::Sig = __nn::SigOf::<::nn::S1<::nn::C<784>>>::SIG;
    }
    struct __nn_V1;
    impl __nn::Signature for __nn_V1 {
        const SIG: __nn::Sig = __nn_L0::RULE.out;
    }
    struct __nn_V2;
    impl __nn::Signature for __nn_V2 {
        const SIG: __nn::Sig = __nn_L1::RULE.out;
    }
    type __nn_L0 = __nn::At<<Net as NetFields>::_0, __nn_V0>;
    type __nn_L1 = __nn::At<<Net as NetFields>::_1, __nn_V1>;
    /// Where the layers and the buffers are.
    struct __nn_Plan;
    impl __nn_Plan {
        const LABEL: __nn::Text = __nn::Part::<Net>::LABEL;
        const TREE: &'static __nn::Node = __nn::Part::<Net>::TREE;
        const FIELDS: &'static [&'static str] = <Net as NetFields>::NAMES;
        const STEP_0: __nn::Step = __nn::Step {
            field: __nn::field(Self::TREE, Self::FIELDS, "_0"),
            place: 0,
        };
        const STEP_1: __nn::Step = __nn::Step {
            field: __nn::field(Self::TREE, Self::FIELDS, "_1"),
            place: Self::STEP_0.place + __nn_L0::PLACES,
        };
        const KEEP_0: bool = __nn_L0::KEEPS_X;
        const KEEP_1: bool = __nn_L1::KEEPS_X || __nn_L0::KEEPS_Y;
        const KEEP_2: bool = __nn_L1::KEEPS_Y;
        const SLOTS: [__nn::Size; 1] = [
            __nn::largest(&[<__nn_V1 as __nn::Signature>::SIG.size()]),
        ];
        const VJP_SLOTS: [__nn::Size; 1] = [
            __nn::largest(&[<__nn_V1 as __nn::Signature>::SIG.size()]),
        ];
        const SAVED: __nn::Size = __nn::sum(
            &[
                <__nn_V1 as __nn::Signature>::SIG.size().when(Self::KEEP_1),
                __nn_L0::SAVED,
                __nn_L1::SAVED,
            ],
        );
        const SCRATCH: __nn::Size = __nn::sum(&Self::SLOTS)
            .plus(__nn::largest(&[__nn_L0::SCRATCH, __nn_L1::SCRATCH]));
        const VJP_SCRATCH: __nn::Size = __nn::sum(&Self::VJP_SLOTS)
            .plus(__nn::largest(&[__nn_L0::VJP_SCRATCH, __nn_L1::VJP_SCRATCH]));
    }
    impl<__nn_X: __nn::Signature> __nn::Layer<__nn_X> for Net {
        const RULE: __nn::Rule = __nn::module_rule(
            &__nn_Plan::LABEL,
            &__nn_X::SIG,
            &__nn::SigOf::<::nn::S1<::nn::C<784>>>::SIG,
            &__nn::SigOf::<::nn::S1<::nn::C<10>>>::SIG,
            &__nn::SigOf::<::nn::S1<::nn::C<10>>>::SIG,
            "Linear",
            &[],
        );
        const KEEPS_X: bool = __nn_Plan::KEEP_0;
        const KEEPS_Y: bool = __nn_Plan::KEEP_2;
        const SAVED: __nn::Size = __nn_Plan::SAVED;
        const CACHE: __nn::Size = __nn::sum(&[__nn_L0::CACHE, __nn_L1::CACHE]);
        const CAUSAL: bool = true && __nn_L0::CAUSAL && __nn_L1::CAUSAL;
        const SCRATCH: __nn::Size = __nn_Plan::SCRATCH;
        const VJP_SCRATCH: __nn::Size = __nn_Plan::VJP_SCRATCH;
        const MACS: usize = __nn_L0::MACS + __nn_L1::MACS;
        const PLACES: u32 = __nn_L0::PLACES + __nn_L1::PLACES;
    }
    impl<__nn_D: __nn::Device, __nn_X: __nn::Signature> __nn::Module<__nn_D, __nn_X>
    for Net
    where
        __nn_L0: __nn::Runs<__nn_D>,
        __nn_L1: __nn::Runs<__nn_D>,
    {
        fn forward(cx: &mut __nn::Ctx<'_, __nn_D>, call: __nn::Forward<'_, __nn_D>) {
            let __nn::Forward { params, mut state, x, y, mut saved, mut scratch } = call;
            let v0 = x;
            let mut y2 = y;
            let mut slot0 = scratch.part(cx, __nn_Plan::SLOTS[0]);
            let mut y1 = __nn::value::<
                __nn_D,
                __nn_V1,
            >(cx, __nn_Plan::KEEP_1, &mut saved, &mut slot0);
            __nn::forward::<
                __nn_D,
                __nn_L0,
            >(
                cx,
                __nn_Plan::STEP_0,
                params,
                &mut state,
                &v0,
                &mut y1,
                &mut saved,
                &mut scratch,
            );
            let v1 = __nn::freeze::<__nn_D, __nn_V1>(y1);
            __nn::forward::<
                __nn_D,
                __nn_L1,
            >(
                cx,
                __nn_Plan::STEP_1,
                params,
                &mut state,
                &v1,
                &mut y2,
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
            let v2 = y;
            let dy2 = dy;
            let mut g0 = dx;
            let v1 = __nn::kept::<__nn_D, __nn_V1>(cx, __nn_Plan::KEEP_1, &mut saved);
            let saved0 = saved.part(cx, __nn_L0::SAVED);
            let saved1 = saved.part(cx, __nn_L1::SAVED);
            let mut slot0 = scratch.part(cx, __nn_Plan::VJP_SLOTS[0]);
            let mut g1 = __nn::gradient::<__nn_D, __nn_V1>(cx, &mut slot0);
            __nn::vjp::<
                __nn_D,
                __nn_L1,
            >(
                cx,
                __nn_Plan::STEP_1,
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
            let dy1 = __nn::read::<__nn_D, __nn_V1>(&g1);
            __nn::vjp::<
                __nn_D,
                __nn_L0,
            >(
                cx,
                __nn_Plan::STEP_0,
                params,
                state,
                &v0,
                &v1,
                saved0,
                &dy1,
                &mut g0,
                &mut dparams,
                &mut scratch,
            );
            ::core::mem::drop(g1);
        }
        fn describe(out: &mut __nn::Describe) {
            __nn::describe_part::<
                __nn_D,
                __nn_L0,
            >(out, __nn::child(__nn_Plan::TREE, __nn_Plan::FIELDS, "_0"));
            __nn::describe_part::<
                __nn_D,
                __nn_L1,
            >(out, __nn::child(__nn_Plan::TREE, __nn_Plan::FIELDS, "_1"));
        }
    }
    impl __nn::Declared for Net {
        type In = ::nn::S1<::nn::C<784>>;
        type Out = ::nn::S1<::nn::C<10>>;
    }
    const _: () = __nn::accept_from(&__nn_L0::RULE.fault, "0", "");
    const _: () = __nn::accept_from(&__nn_L1::RULE.fault, "1", "LinearReLU");
    const _: () = __nn::accept(
        &__nn::check_possible(
            &__nn_Plan::LABEL,
            "take",
            &__nn::SigOf::<::nn::S1<::nn::C<784>>>::SIG,
        ),
    );
    const _: () = __nn::accept(
        &__nn::check_declared(
            &__nn_Plan::LABEL,
            &__nn::SigOf::<::nn::S1<::nn::C<10>>>::SIG,
            &<__nn_V2 as __nn::Signature>::SIG,
            "Linear",
        ),
    );
};
