use crate::cases;

cases! {
    cells_and_their_gradients within 1e-6 |t| {
        for (rows, hidden) in [(1, 1), (3, 5), (2, 40)] {
            let n = rows * hidden;
            let (mut gates, c, dh) = (t.random(1, 4 * n), t.random(2, n), t.random(3, n));
            let (mut c_next, mut h_next, mut dc, mut dgates) = (t.room(n), t.room(n), t.random(4, n), t.room(4 * n));
            t.d.lstm(
                hidden, D::view_mut(&mut gates), D::view(&c), D::view_mut(&mut c_next), D::view_mut(&mut h_next),
            );
            t.d.lstm_vjp(
                hidden, D::view(&gates), D::view(&c), D::view(&c_next), D::view(&dh), D::view_mut(&mut dc),
                D::view_mut(&mut dgates),
            );
            let all = [("gates", &gates), ("c", &c_next), ("h", &h_next), ("dc", &dc), ("dgates", &dgates)];
            for (name, buffer) in all {
                t.keep_elements(format!("lstm {name}"), buffer);
            }
            let (mut gates, recurrent, h) = (t.random(1, 3 * n), t.random(2, 3 * n), t.random(3, n));
            let (mut dgates, mut drecurrent, mut dh) = (t.room(3 * n), t.room(3 * n), t.random(4, n));
            t.d.gru(
                hidden, D::view_mut(&mut gates), D::view(&recurrent), D::view(&h), D::view_mut(&mut h_next),
            );
            t.d.gru_vjp(
                hidden, D::view(&gates), D::view(&recurrent), D::view(&h), D::view_mut(&mut dh),
                D::view_mut(&mut dgates), D::view_mut(&mut drecurrent),
            );
            let all =
                [("gates", &gates), ("h", &h_next), ("dh", &dh), ("dgates", &dgates), ("drecurrent", &drecurrent)];
            for (name, buffer) in all {
                t.keep_elements(format!("gru {name}"), buffer);
            }
        }
    }
}
