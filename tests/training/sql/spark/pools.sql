WITH candidates AS (
  SELECT
    o.*
  FROM offers AS o
  LEFT JOIN contested AS c
    ON c.text_id = o.text_id
  WHERE
    NOT o.text_id IS NULL
    AND (
      o.label IS NULL OR c.text_id IS NULL OR c.label = o.label
    )
), placed AS (
  SELECT
    *,
    ROW_NUMBER() OVER (
      PARTITION BY text_id
      ORDER BY CASE WHEN label IS NULL THEN 1 ELSE 0 END NULLS LAST, CASE side WHEN 'test' THEN 0 WHEN 'validation' THEN 1 ELSE 2 END NULLS LAST, alone NULLS LAST, row_id NULLS LAST
    ) AS place
  FROM candidates
), sided AS (
  SELECT
    row_id,
    name_id,
    draw,
    alone,
    side,
    label,
    language,
    outer_lot,
    middle_lot,
    inner_lot,
    CASE
      WHEN NOT label IS NULL
      THEN side
      WHEN side = 'train'
      THEN 'transfer'
      ELSE 'held'
    END AS pool
  FROM placed
  WHERE
    place = 1
), names AS (
  SELECT
    name_id,
    MIN(side) AS first_side,
    MAX(side) AS last_side
  FROM sided
  WHERE
    alone = 0 AND pool <> 'held'
  GROUP BY
    name_id
)
SELECT
  s.row_id,
  s.draw,
  CASE
    WHEN s.pool <> 'held' AND (
      n.first_side <> s.side OR n.last_side <> s.side
    )
    THEN 'torn'
    ELSE s.pool
  END AS pool,
  CASE WHEN s.label IS NULL THEN s.language ELSE s.label END AS stratum,
  s.language,
  s.outer_lot,
  s.middle_lot,
  s.inner_lot
FROM sided AS s
LEFT JOIN names AS n
  ON s.alone = 1 AND n.name_id = s.name_id
