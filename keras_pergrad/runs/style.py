"""How the page of a comparison looks, in light and dark."""

STYLE = """
.kpg{--back:#fff;--soft:#f5f5f2;--text:#1d1d1b;--muted:#63625c;--rule:#dcdbd4;
--c1:#2458c0;--c2:#b8500a;--c3:#14765a;color-scheme:light;
background:var(--back);color:var(--text);box-sizing:border-box;
max-width:74rem;margin:0 auto;padding:1.25rem 1rem 3rem;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
html:has(>body>.kpg){background:#fff}
@media(prefers-color-scheme:dark){.kpg{--back:#161615;--soft:#21211f;
--text:#ecebe6;--muted:#a8a69e;--rule:#3b3a37;--c1:#82abff;--c2:#f2a461;
--c3:#62cda1;color-scheme:dark}html:has(>body>.kpg){background:#161615}}
.kpg *{box-sizing:border-box}
.kpg h1{font-size:1.6rem;line-height:1.2;margin:0 0 .25rem}
.kpg h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.kpg p{margin:0 0 .6rem}
.kpg .muted{color:var(--muted);font-size:.875rem}
.kpg .first{font-size:1.15rem;max-width:46rem;margin:1rem 0 .6rem;
padding-left:.9rem;border-left:4px solid var(--c1);overflow-wrap:anywhere}
.kpg ul{max-width:48rem;margin:.4rem 0;padding-left:1.2rem}
.kpg li{margin:.3rem 0;overflow-wrap:anywhere}
.kpg .charts{display:grid;gap:1rem;margin-top:1.5rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}
.kpg figure{margin:0;padding:.8rem;background:var(--soft);border-radius:10px;
max-width:34rem}
.kpg figcaption{display:flex;flex-wrap:wrap;gap:.1rem .9rem;
align-items:baseline;font-size:.9rem;margin-bottom:.4rem}
.kpg figcaption b{flex:1 0 100%}
.kpg figure p{margin:.3rem 0 0;font-size:.8rem}
.kpg .key::before{content:"";display:inline-block;width:1.4em;height:0;
border-top:2.5px solid;margin-right:.4em;vertical-align:middle}
.kpg .key.c1{color:var(--c1)}.kpg .key.c2{color:var(--c2)}
.kpg .key.c3{color:var(--c3)}
.kpg .key.c2::before{border-top-style:dashed}
.kpg .key.c3::before{border-top-style:dotted}
.kpg svg{display:block;width:100%;height:auto}
.kpg svg text{fill:var(--muted);font:11px system-ui,sans-serif;
text-anchor:start}
.kpg svg .end{text-anchor:end}.kpg svg .middle{text-anchor:middle}
.kpg svg .grid{stroke:var(--rule);stroke-width:1}
.kpg svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
.kpg svg .line.c1{stroke:var(--c1)}
.kpg svg .line.c2{stroke:var(--c2);stroke-dasharray:6 4}
.kpg svg .line.c3{stroke:var(--c3);stroke-dasharray:2 4;
stroke-linecap:round}
.kpg svg circle.c1,.kpg svg .band.c1{fill:var(--c1)}
.kpg svg circle.c2,.kpg svg .band.c2{fill:var(--c2)}
.kpg svg circle.c3{fill:var(--c3)}
.kpg svg .band{fill-opacity:.16;stroke:none}
.kpg svg .cell{fill:var(--c1);stroke:var(--rule);stroke-width:.5}
.kpg svg .none{fill:var(--rule);fill-opacity:.5}
.kpg .wide{overflow-x:auto;max-width:100%}
.kpg table{border-collapse:collapse;font-size:.875rem;
font-variant-numeric:tabular-nums}
.kpg th,.kpg td{text-align:left;padding:.35rem .9rem .35rem 0;
border-bottom:1px solid var(--rule);white-space:nowrap;
vertical-align:top;background:none;color:inherit}
.kpg td.long{white-space:normal;min-width:18rem;overflow-wrap:anywhere}
.kpg th{color:var(--muted);font-weight:600}
.kpg dt{font-weight:600;margin-top:.6rem}
.kpg dd{margin:0;max-width:48rem}
"""
