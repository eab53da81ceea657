//! What users may name as they like.

use super::output;

/// Parameters named as the generated code's types are.
mod parameters {
    use nn::{Linear, T, module};

    #[module]
    pub(crate) struct Net<const D: usize, const X: usize, const S: usize, const V0: usize> {
        first: Linear<D, X>,
        second: Linear<X, { S * V0 }>,
    }

    #[module]
    impl<const D: usize, const X: usize, const S: usize, const V0: usize> Net<D, X, S, V0> {
        fn forward(&self, x: T![D]) -> T![{ S * V0 }] {
            let y = self.first(x);
            self.second(y)
        }
    }

    #[module]
    pub(crate) type Tiny = Net<3, 4, 1, 2>;
}

#[test]
fn parameters_may_be_named_as_generated_types() {
    assert_eq!(output::<parameters::Tiny>(&[1.0, 2.0, 3.0]).len(), 2);
}

/// Types named as those of the library, of which none is in scope.
mod types {
    #[derive(Clone, Copy, Debug)]
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) struct Device;
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) trait Module {}
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) trait Layer {}
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) struct Field;
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) struct Step;
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) enum Option {}
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) enum Result {}
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) struct Default;
    #[allow(dead_code, reason = "only the name counts")]
    pub(crate) struct Self_;

    ::nn::sequential! {
        pub(crate) V1: [2] -> [3] = ::nn::Linear<2, 3>
    }

    ::nn::sequential! {
        pub(crate) Plan: [2] -> [2] = V1, ::nn::ReLU, ::nn::Linear<3, 2>
    }

    /// A module called as the crate is.
    pub(crate) mod nn {
        ::nn::sequential! {
            pub(crate) Net: [2] -> [2] = ::nn::Linear<2, 2>
        }
    }

    #[::nn::module]
    pub(crate) struct Outer {
        inner: nn::Net,
        plan: Plan,
    }

    #[::nn::module]
    impl Outer {
        fn forward(&self, x: ::nn::T![2]) -> ::nn::T![2] {
            self.plan(self.inner(x))
        }
    }
}

#[test]
fn types_may_be_named_as_the_library_s() {
    assert_eq!(output::<types::Outer>(&[1.0, 2.0]).len(), 2);
}

/// Fields named as the generated code's variables, and after keywords.
mod fields {
    use nn::{Linear, T, module};

    #[module]
    pub(crate) struct Net {
        forward: Linear<2, 3>,
        params: Linear<3, 3>,
        x: Linear<3, 3>,
        cx: Linear<3, 3>,
        r#type: Linear<3, 3>,
        r#in: Linear<3, 2>,
        vjp: Linear<2, 2>,
        saved: Linear<2, 2>,
        __nn: Linear<2, 2>,
    }

    #[module]
    impl Net {
        fn forward(&self, x: T![2]) -> T![2] {
            let params = self.forward(x);
            let cx = self.params(params);
            let state = self.cx(self.x(cx));
            let r#fn = self.r#in(self.r#type(state));
            self.__nn(self.saved(self.vjp(r#fn)))
        }
    }
}

#[test]
fn fields_may_be_named_as_generated_variables() {
    assert_eq!(output::<fields::Net>(&[1.0, 2.0]).len(), 2);
}

#[test]
fn a_raw_name_is_plain_in_a_checkpoint() {
    let model = nn::Model::<fields::Net>::init(1, 1).expect("a model of this size fits");
    let paths: Vec<_> = model.weights().parameters().iter().map(|p| p.path.as_str()).collect();
    assert!(paths.contains(&"type.weight") && paths.contains(&"in.bias"), "{paths:?}");
}

/// Modules of one name in two places, and a generic one beside a plain one.
mod twice {
    pub(crate) mod a {
        nn::sequential! { pub(crate) Net: [2] -> [3] = nn::Linear<2, 3> }
    }
    pub(crate) mod b {
        nn::sequential! { pub(crate) Net<const N: usize>: [3] -> [N] = nn::Linear<3, N> }
    }
    nn::sequential! { pub(crate) Both: [2] -> [4] = a::Net, b::Net<4> }
}

#[test]
fn modules_of_one_name_are_told_apart() {
    assert_eq!(output::<twice::Both>(&[1.0, 2.0]).len(), 4);
}
