# SPDX-License-Identifier: Apache-2.0
"""How report.html looks, on light and on dark screens."""

STYLE = """
:root { color-scheme: light dark; --text: #1d2329; --dim: #5c6670; --line: #d5dae0; --back: #ffffff;
  --good: #1a7f37; --bad: #c62f2f; --none: #9a6700; --seen: #2563c9; --sent: #d9730d; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --dim: #98a2ad; --line: #3a424b; --back:
  #14181c;
  --good: #4ac26b; --bad: #ff7b72; --none: #d4a72c; --seen: #6ea8fe; --sent: #ffa657; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width:
  1100px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.dim, figcaption { color: var(--dim); } figcaption { font-size: .85rem; }
.head { display: flex; flex-wrap: wrap; gap: 1rem 3rem; align-items: center; margin: 1.5rem 0; }
.rate-text { font-size: 2.6rem; font-weight: 600; line-height: 1; } .interval { width: min(420px, 100%); }
.tiles { display: flex; flex-wrap: wrap; gap: 4px; }
.tiles a { min-width: 2rem; padding: 0 .3rem; text-align: center; border-radius: 3px; color: #fff;
  text-decoration: none; }
a.success { background: #1a7f37; } a.failed { background: #c62f2f; } a.unscored { background: #9a6700; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1.2rem .15rem 0;
  vertical-align: top; }
th { font-weight: 400; color: var(--dim); white-space: nowrap; } td { overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } .word { font-weight: 600; }
.word.success { color: var(--good); } .word.failed { color: var(--bad); } .word.unscored { color:
  var(--none); }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: .6rem; margin:
  .6rem 0; }
.videos { grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); } figure { margin: 0; }
video, svg { width: 100%; height: auto; display: block; } video { background: #000; border-radius: 4px; }
svg text { fill: var(--dim); font: 9px system-ui, sans-serif; } svg text.name { fill: var(--text);
  font-size: 10px; }
svg.interval text { font-size: 11px; }
svg .frame { fill: none; stroke: var(--line); } svg polyline { fill: none; stroke-width: 1.2; }
svg .seen { stroke: var(--seen); } svg .sent { stroke: var(--sent); stroke-dasharray: 4 2; }
svg circle.seen, svg circle.rate { fill: var(--seen); stroke: none; } svg .span { fill: var(--seen);
  opacity: .35; }
.key::before { content: ""; display: inline-block; width: 1.6em; border-top: 2px solid var(--seen);
  vertical-align: middle; margin: 0 .4em 0 .8em; } .key.sent::before { border-top: 2px dashed
  var(--sent); }
"""
