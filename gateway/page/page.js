'use strict';
(() => {
  const every = 3000;
  const stale = document.getElementById('stale');
  let heard = new Date();

  // What a reader has opened stays open.
  function keep(from, to) {
    for (const d of from.querySelectorAll('details[id]')) {
      const same = to.querySelector('#' + d.id);
      if (same) same.open = d.open;
    }
  }

  async function refresh() {
    try {
      if (!document.hidden) {
        const answer = await fetch(location.href, { cache: 'no-store' });
        if (!answer.ok) throw new Error(answer.status);
        const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
        const main = document.querySelector('main'), to = next.querySelector('main');
        keep(main, to);
        main.replaceWith(document.adoptNode(to));
        document.title = next.title;
        heard = new Date();
        stale.hidden = true;
      }
    } catch {
      stale.textContent = 'The gateway has not answered since ' + heard.toLocaleTimeString() + '. What is shown is old.';
      stale.hidden = false;
    }
    setTimeout(refresh, every);
  }
  setTimeout(refresh, every);
})();
