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
      ORDER BY CASE WHEN label IS NULL THEN 1 ELSE 0 END NULLS LAST, alone NULLS LAST, draw NULLS LAST, row_id NULLS LAST
    ) AS place
  FROM candidates
)
SELECT
  row_id,
  draw,
  CASE WHEN label IS NULL THEN 'transfer' ELSE side END AS pool,
  CASE WHEN label IS NULL THEN language ELSE label END AS stratum,
  language,
  outer_lot,
  middle_lot,
  inner_lot
FROM placed
WHERE
  place = 1 AND (
    NOT label IS NULL OR side = 'train'
  )
